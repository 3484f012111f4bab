"""The benchmarks take any backbone, lose none for another's failure, and write what they print."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, load_tool, output_of
from PIL import Image
from torch import nn

from mmlaplace.lab.side_by_side import backbone_candidates as candidates
from mmlaplace.model_zoo import read_backbones
from mmlaplace.models import FAMILIES, LaplacianAttention

MICRO = 'laplacianformer-micro'
tool = load_tool('tools/benchmarks/benchmark_backbone.py')


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the tool in this process for one tiny round; returns its status and what it wrote."""
    out = tmp_path / 'backbone.json'
    # Which gives all freed memory of this process back first: seconds.
    monkeypatch.setattr(tool, 'process_memory', lambda job: 2**20)
    monkeypatch.setenv('COLUMNS', '250')  # so that no cell is wrapped

    def run(*arguments, force=('--force',)):
        options = ['--rounds', '1', '--out', str(out), *force]
        monkeypatch.setattr(sys, 'argv', ['benchmark_backbone.py', *map(str, arguments), *options])
        status = tool.main()
        return status, json.loads(out.read_text())

    return run


@pytest.mark.slow
def test_the_tool_writes_json_and_plots_and_keeps_what_is_there(run, tmp_path, capsys):
    names = [MICRO, f'{MICRO}+SoftmaxAttention', f'{MICRO}+PolaAttention']
    plots = tmp_path / 'a.png', tmp_path / 'top1.png'
    command = [*names, '--sizes', '32x2', '64x2', '--train', '--threads', 1, '--base', names[1],
               '--plot', plots[0], '--plot-top1', plots[1]]  # fmt: skip
    status, written = run(*command)
    rows = written['rows']
    assert status == 0 and set(written['exponents']) == set(names)
    found = [(row['candidate'], row['side']) for row in rows]
    assert found == [(name, side) for side in (32, 64) for name in names]
    for row in rows:
        assert row['median ms'] > 0 and row['MB'] == 1
        assert row['images per second'] * row['median ms'] / 2 == pytest.approx(1000)
    assert all(min(Image.open(plot).size) > 300 for plot in plots)
    printed = capsys.readouterr().out
    line = next(line for line in printed.splitlines() if names[1] in line and '│' in line)
    assert ' 1.00 ' in line
    with pytest.raises(SystemExit, match='2'):
        run(*command, force=())
    assert '--force replaces it' in capsys.readouterr().err
    report = ('--report', tmp_path / 'backbone.json')
    printed = output_of(Path(tool.__file__), *names[:2], *report)
    assert f'| {MICRO} ' in printed and names[2] not in printed


def test_every_backbone_of_ours_with_an_arch_is_a_candidate(monkeypatch):
    monkeypatch.setattr('mmlaplace.model_zoo.initialise', id)  # which takes seconds
    known = list(candidates.catalogue(''))
    assert known == [model.name for model in read_backbones()]
    for family in FAMILIES.values():
        for cls, start in family.backbones.items():
            assert all(any(name.startswith(f'{start}-{arch}') for name in known)
                       for arch in cls.arch_zoo)  # fmt: skip
    linear = candidates.find('deit-micro+LaplacianAttention')(False)  # without its class token
    assert type(linear.stages[0]['blocks'][0].attn) is LaplacianAttention


def test_sizes_with_equal_tuples_are_sizes_of_their_own():
    pytest.importorskip('mmpretrain')
    models = [candidates.find(f'mmpretrain:EfficientNet-{size}')(False) for size in ('b0', 'es')]
    assert len({sum(p.numel() for p in model.parameters()) for model in models}) == 2


@pytest.mark.parametrize('name', [
    'mmpretrain:SwinTransformer-tiny', 'mmdet:PyramidVisionTransformerV2-b0',
])  # fmt: skip
def test_the_backbones_of_a_toolbox_are_its_own(name):
    toolbox = name.partition(':')[0]
    pytest.importorskip(toolbox)
    model = candidates.find(name)(False)
    model.eval()
    assert type(model).__module__.startswith(f'{toolbox}.models.backbones.')
    with torch.no_grad():
        assert model(torch.randn(1, 3, 224, 224))[-1].shape[0] == 1  # Swin takes no less


@pytest.mark.parametrize(('words', 'message'), [
    (['laplacianformer-tyni'], 'Similar names are .*laplacianformer-tiny.*--list'),
    # mmpretrain's registry finds our Swin, as the root is its parent.
    (['mmpretrain:Swin-tiny'], 'no such backbone'),
    (['--sizes', '224x'], "'224x': give SIDExBATCH"),
])  # fmt: skip
def test_a_mistyped_word_stops_the_tool_before_it_measures(words, message, run, capsys):
    with pytest.raises(SystemExit, match='2'):
        run(MICRO, *words)
    assert re.search(message, ' '.join(capsys.readouterr().err.split()))


class Hungry(nn.Conv2d):
    def forward(self, x):
        if x.size(-1) > 32:
            raise torch.cuda.OutOfMemoryError('out of memory')
        return super().forward(x)


@pytest.mark.slow
def test_a_failure_is_named_in_its_row_and_costs_the_others_nothing(run, monkeypatch, capsys):
    builders = dict(hungry=lambda train: Hungry(3, 4, 3), wrong=lambda train: nn.Linear(-1, 2))
    monkeypatch.setattr(tool, 'find', lambda name: builders.get(name) or candidates.find(name))
    monkeypatch.setitem(sys.modules, 'timm', None)  # its import fails
    candidates.catalogue.cache_clear()
    status, written = run('hungry', MICRO, 'wrong', 'timm:resnet18', '--sizes', '32', '64')
    failures = [row['failure'] for row in written['rows']]
    assert status == 0 and 'out of memory' in failures[2] and failures.count('') == 3
    assert 'out of memory' in capsys.readouterr().out
    assert written['failures']['wrong'].startswith('RuntimeError: ')
    assert 'pip install timm' in written['failures']['timm:resnet18']
    status, _ = run('wrong', '--sizes', '32')  # alone, so nothing is measured
    assert status == 1


@pytest.mark.slow
def test_benchmark_ops(tmp_path):
    out, plot, threads = tmp_path / 'ops.json', tmp_path / 'ops.png', torch.get_num_threads()
    options = ['--threads', 1, '--out', out, '--plot', plot, '--train-step']
    output_of(ROOT / 'tools/benchmarks/benchmark_ops.py', '--quick', *options)
    torch.set_num_threads(threads)
    written = json.loads(out.read_text())
    rows = [row for row in written['rows'] if row['candidate'] == 'native']
    ops = {'laplacian_kernel', 'gaussian_kernel', 'newton_schulz_inverse', 'linear_attention'}
    assert {row['op'] for row in rows} == ops
    assert {row['pass'] for row in rows} == {'forward', '+ backward'}
    assert all(row['median ms'] > 0 and row['runs'] >= 3 for row in rows)
    assert written['peak G diff/s'] > 0 and written['train step']['reference / native'] > 0
    assert min(Image.open(plot).size) > 300
