"""The studies of trained attentions write figures that agree with the theory, and pictures."""

import json

import pytest
import torch
from conftest import ROOT, run_script
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image

TOOLS = ROOT / 'tools/analysis_tools'


@pytest.mark.slow
def test_compare_landmarks(tmp_path):
    config = ROOT / 'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
    backbone = MODELS.build(Config.fromfile(config).model.backbone)
    torch.save(backbone.state_dict(), tmp_path / 'weights.pth')
    out = tmp_path / 'landmarks.json'
    result = run_script(
        TOOLS / 'compare_landmarks.py', config, tmp_path / 'weights.pth',
        '--size', 256, 320, '--arch', 'micro', '--rounds', 1, '--landmarks', 4, 64, '--out', out,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    few, many = json.loads(out.read_text())['rows']
    # More landmarks, less error, in every stage.
    assert all(m < f for f, m in zip(few['errors'], many['errors']))


@pytest.mark.slow
@pytest.mark.parametrize(
    ('tool', 'config', 'options'),
    [
        (
            'compare_inverse_norms',
            'soft/softpp-micro',
            ['--landmarks', '4', '16', '--size', '96', '96'],
        ),
        ('compare_row_entropy', 'polaformer/polaformer-pvt-micro', ['--size', '64', '96']),
    ],
)
def test_studies_write_figures_and_a_picture(tool, config, options, tmp_path):
    config = ROOT / f'configs/classification/{config}_1xb32_mini.py'
    backbone = MODELS.build(Config.fromfile(config).model.backbone)
    torch.save(backbone.state_dict(), tmp_path / 'weights.pth')
    out, picture = tmp_path / 'figures.json', tmp_path / 'picture.png'
    command = [TOOLS / f'{tool}.py', config, tmp_path / 'weights.pth',
               *options, '--out', out, '--picture', picture]  # fmt: skip
    result = run_script(*command)
    assert result.returncode == 0, result.stderr
    assert min(Image.open(picture).size) > 300
    figures = json.loads(out.read_text())
    if tool == 'compare_inverse_norms':
        forms = figures['norms']['trained']
        for few, many in zip(forms['without, exact'], forms['with, exact']):
            assert many['mean'] < few['mean']  # the row sums are larger than one
    else:
        # The theorem: under a higher power every row's entropy is lower.
        assert all(row['lower'] == 1 for row in figures['random'] if row['power'] > 1)
        assert {row['stream'] for row in figures['trained']} == {'same signs', 'opposite signs'}
    result = run_script(*command)
    assert result.returncode == 2
    assert '--force replaces' in result.stderr
