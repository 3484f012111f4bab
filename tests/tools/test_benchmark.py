"""The benchmark writes what it prints, and keeps what is there."""

import json
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image


def benchmark(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, ROOT / 'tools/benchmark_ops.py', '--quick', '--threads', '1', *arguments],
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_benchmark_ops(tmp_path):
    out, plot = tmp_path / 'ops.json', tmp_path / 'ops.png'
    result = benchmark('--out', out, '--plot', plot, '--train-step')
    assert result.returncode == 0, result.stderr
    written = json.loads(out.read_text())
    rows = [row for row in written['rows'] if row['contender'] == 'native']
    ops = {'laplacian_kernel', 'gaussian_kernel', 'newton_schulz_inverse'}
    assert {row['op'] for row in rows} == ops
    assert {row['pass'] for row in rows} == {'forward', '+ backward'}
    assert all(row['median ms'] > 0 and row['runs'] >= 3 for row in rows)
    assert written['peak G diff/s'] > 0
    assert written['train step']['reference / native'] > 0
    assert str(out) in result.stdout + result.stderr
    assert min(Image.open(plot).size) > 300

    before = out.read_text()
    result = benchmark('--out', out, '--ops', 'inverse')
    assert result.returncode != 0
    assert '--force' in result.stderr
    assert out.read_text() == before


@pytest.mark.slow
def test_benchmark_backbone(tmp_path):
    out, plot = tmp_path / 'backbone.json', tmp_path / 'backbone.png'
    command = [
        sys.executable, ROOT / 'tools/benchmark_backbone.py', '--arch', 'micro', '--sides', '32',
        '64', '--rounds', '1', '--train', '--out', out, '--plot', plot,
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    written = json.loads(out.read_text())
    assert [(row['attention'], row['side']) for row in written['rows']] == [
        (attention, side)
        for side in (32, 64)
        for attention in ('LaplacianAttention', 'SoftmaxAttention')
    ]
    assert all(row['median ms'] > 0 for row in written['rows'])
    assert set(written['exponents']) == {'LaplacianAttention', 'SoftmaxAttention'}
    assert min(Image.open(plot).size) > 300
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert '--force replaces it' in result.stderr


@pytest.mark.slow
def test_compare_landmarks(tmp_path):
    config = ROOT / 'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
    backbone = MODELS.build(Config.fromfile(config).model.backbone)
    torch.save(backbone.state_dict(), tmp_path / 'weights.pth')
    out = tmp_path / 'landmarks.json'
    result = subprocess.run(
        [sys.executable, ROOT / 'tools/compare_landmarks.py', config, tmp_path / 'weights.pth',
         '--size', '256', '320', '--arch', 'micro', '--rounds', '1', '--landmarks', '4', '64',
         '--out', out],
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    few, many = json.loads(out.read_text())['rows']
    # More landmarks, less error, in every stage.
    assert all(m < f for f, m in zip(few['errors'], many['errors']))


@pytest.mark.slow
@pytest.mark.parametrize(
    ('tool', 'config', 'options'),
    [
        ('compare_norms', 'soft/softpp-micro', ['--landmarks', '4', '16', '--size', '96', '96']),
        ('compare_entropy', 'polaformer/polaformer-pvt-micro', ['--size', '64', '96']),
    ],
)
def test_studies_write_figures_and_a_picture(tool, config, options, tmp_path):
    config = ROOT / f'configs/classification/{config}_1xb32_mini.py'
    backbone = MODELS.build(Config.fromfile(config).model.backbone)
    torch.save(backbone.state_dict(), tmp_path / 'weights.pth')
    out, picture = tmp_path / 'figures.json', tmp_path / 'picture.png'
    command = [sys.executable, ROOT / f'tools/{tool}.py', config, tmp_path / 'weights.pth',
               *options, '--out', out, '--picture', picture]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert min(Image.open(picture).size) > 300
    figures = json.loads(out.read_text())
    if tool == 'compare_norms':
        forms = figures['norms']['trained']
        for few, many in zip(forms['without, exact'], forms['with, exact']):
            assert many['mean'] < few['mean']  # the row sums are larger than one
    else:
        # The theorem: under a higher power every row's entropy is lower.
        assert all(row['lower'] == 1 for row in figures['random'] if row['power'] > 1)
        assert {row['stream'] for row in figures['trained']} == {'same signs', 'opposite signs'}
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert '--force replaces' in result.stderr
