"""The benchmark of backbones takes any by name, loses none for another's failure, and reports."""

import json
import re
import sys
import types
from functools import partial

import pytest
import torch
from conftest import load_tool, registered
from mmengine.registry import MODELS
from PIL import Image
from torch import nn

from mmlaplace.comparison import backbone_contenders as contenders
from mmlaplace.comparison import backbone_report, published_top1
from mmlaplace.model_zoo import read_models
from mmlaplace.models import PyramidBackbone

MICRO, LITTLE = 'laplacianformer-micro', 'timm:little_net'
tool = load_tool('tools/benchmarks/benchmark_backbone.py')
report_tool = load_tool('tools/benchmarks/backbone_report.py')


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the tool in this process for one tiny round; returns its status and what it wrote."""
    out = tmp_path / 'backbone.json'
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
    found = [(row['contender'], row['side']) for row in rows]
    assert found == [(name, side) for side in (32, 64) for name in names]
    for row in rows:
        assert row['median ms'] > 0 and row['ms per image'] == row['median ms'] / 2
        assert row['images per second'] * row['ms per image'] == pytest.approx(1000)
    assert all(min(Image.open(plot).size) > 300 for plot in plots)
    printed = capsys.readouterr().out
    line = next(line for line in printed.splitlines() if names[1] in line and '│' in line)
    assert ' 1.00 ' in line
    with pytest.raises(SystemExit, match='2'):
        run(*command, force=())
    assert '--force replaces it' in capsys.readouterr().err


def test_every_backbone_of_ours_with_an_arch_is_a_contender():
    known = contenders.catalogue('')
    for family in registered(PyramidBackbone):
        cls = MODELS.get(family)
        assert {f'{family.lower()}-{arch}' for arch in cls.arch_zoo} <= set(known)
        model = contenders.find(f'{family.lower()}-{next(iter(cls.arch_zoo))}')(False)
        assert type(model) is cls and model.out_indices == (model.num_stages - 1,)


@pytest.mark.parametrize(
    'name',
    [
        'mmpretrain:SwinTransformer-tiny',
        'mmdet:PyramidVisionTransformerV2-b0',
        'mmseg:MixVisionTransformer',
    ],
)
def test_the_backbones_of_a_toolbox_are_its_own(name):
    toolbox = name.partition(':')[0]
    try:
        contenders.catalogue(toolbox)
    except ImportError as error:
        pytest.skip(str(error))
    model = contenders.find(name)(False)
    model.eval()
    assert type(model).__module__.startswith(f'{toolbox}.models.backbones.')
    with torch.no_grad():
        assert model(torch.randn(1, 3, 224, 224))[-1].shape[0] == 1  # Swin takes no less


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['laplacianformer-tyni'], 'Similar names are .*laplacianformer-tiny.*--list'),
        # mmpretrain's registry finds our Swin, as the root is its parent.
        (['mmpretrain:Swin-tiny'], 'no such backbone'),
        (['--sizes', '224x'], "'224x': give SIDExBATCH"),
    ],
)
def test_a_mistyped_word_stops_the_tool_before_it_measures(words, message, run, capsys):
    with pytest.raises(SystemExit, match='2'):
        run(MICRO, *words)
    assert re.search(message, ' '.join(capsys.readouterr().err.split()))


class Hungry(nn.Conv2d):
    def forward(self, x):
        if x.size(-1) > 32:
            raise torch.cuda.OutOfMemoryError('out of memory')
        return super().forward(x)


@pytest.fixture
def timm(monkeypatch):
    """A timm with one model; None where it is not installed."""
    module, utils = types.ModuleType('timm'), types.ModuleType('timm.utils')
    module.list_models = lambda: ['little_net']
    module.create_model = lambda name, **_: Hungry(3, 4, 3)
    utils.reparameterize_model = lambda model: model
    monkeypatch.setitem(sys.modules, 'timm', module)
    monkeypatch.setitem(sys.modules, 'timm.utils', utils)
    contenders.catalogue.cache_clear()
    yield module
    contenders.catalogue.cache_clear()


def test_a_failure_is_named_in_its_row_and_costs_the_others_nothing(timm, run, monkeypatch, capsys):
    status, written = run(LITTLE, MICRO, '--sizes', '32', '64')
    failures = [row['failure'] for row in written['rows']]
    assert status == 0 and 'out of memory' in failures[2] and failures.count('') == 3
    assert 'out of memory' in capsys.readouterr().out
    timm.create_model = lambda name, **_: nn.Linear(-1, 2)  # cannot be built
    status, written = run(MICRO, LITTLE, '--sizes', '32')
    assert status == 0 and written['failures'][LITTLE].startswith('RuntimeError: ')
    monkeypatch.setitem(sys.modules, 'timm', None)  # its import fails
    contenders.catalogue.cache_clear()
    status, written = run(MICRO, LITTLE, '--sizes', '32')
    assert status == 0 and 'pip install timm' in written['failures'][LITTLE]
    assert run(LITTLE, '--sizes', '32')[0] == 1


def test_modes_are_compiled_and_under_autocast(run, monkeypatch):
    # Traced as for inductor, whose code takes a minute to build.
    monkeypatch.setattr(torch, 'compile', partial(torch.compile, backend='eager'))
    modes = ['eager', 'compiled', 'bf16', 'compiled-bf16']
    status, written = run(MICRO, '--sizes', '32', '64', '--modes', *modes)
    assert status == 0 and not any(row['failure'] for row in written['rows'])
    assert [row['mode'] for row in written['rows']] == 2 * modes
    assert set(written['exponents'][MICRO]) == set(modes)


def test_a_slow_contender_sits_out_of_larger_sizes(run):
    _, written = run(MICRO, '--sizes', '64', '32', '96', '--limit', '0')
    reasons = [bool(row['failure']) for row in written['rows']]
    assert reasons == [False, False, True]  # 32 is smaller than 64
    assert 'sat out' in written['rows'][2]['failure']


# The report.


def synthetic():
    """A result with two contenders that have a published top-1."""
    names, row = ['laplacianformer-tiny', 'mmpretrain:ResNet-50'], dict(mode='eager', MB=10.0)
    row.update({'failure': '', 'runs': 3, 'min ms': 40.0})
    rows = [
        {**row, 'contender': name, 'side': side, 'batch': 8, 'median ms': ms,
         'ms per image': ms / 8, 'images per second': 8e3 / ms}
        for side, ms in ((224, 80.0), (448, 320.0))
        for name, ms in zip(names, (ms, 2 * ms))
    ]  # fmt: skip
    return dict(
        machine=dict(CPU='a CPU', threads='2'), train=False, base=names[0], modes=['eager'],
        sizes=[[224, 8], [448, 8]], contenders=[*names, 'timm:fastvit_t8'], rows=rows,
        failures={'timm:fastvit_t8': 'no timm'}, exponents={},
        models={name: dict(parameters=12_000_000) for name in names},
    )  # fmt: skip


@pytest.mark.slow
def test_the_report_renders_markdown_and_plots_from_the_json(monkeypatch, tmp_path, capsys):
    path, plot = tmp_path / 'a.json', tmp_path / 'top1.png'
    path.write_text(json.dumps(synthetic()))
    options = ['--markdown', '--base', 'mmpretrain:ResNet-50', '--plot-top1', str(plot)]
    monkeypatch.setattr(sys, 'argv', ['backbone_report.py', str(path), *options])
    report_tool.main()
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines() if line.startswith('| laplacian')]
    row = 'laplacianformer-tiny | 12.0 | 81.4 | 10.0 | 100.0 | 0.50 | 10'
    assert ' '.join(lines[0]).startswith(f'| {row}')
    assert lines[1][5] == '-'  # its top-1 is for another size
    assert '| timm:fastvit_t8' in printed and 'no timm' in printed
    assert min(Image.open(plot).size) > 300


def test_exponents_and_points_of_the_published_size():
    result, names = synthetic(), ('laplacianformer-tiny', 'mmpretrain:ResNet-50')
    # Of four times the pixels in four times the time.
    expected = {name: {'eager': pytest.approx(1.0)} for name in names}
    assert backbone_report.exponents(result['rows']) == expected
    points = backbone_report.top1_points(result, 'eager')
    assert points == {names[0]: (100.0, 8), names[1]: (50.0, 8)}


def test_published_figures_name_contenders():
    published = published_top1.published()
    for name in published:
        if not name.startswith('timm:'):
            contenders.find(name)
    zoo = {model.name: model.metadata for model in read_models()}
    tiny = zoo['laplacianformer-tiny_8xb128_in1k']['Published']['Top 1 Accuracy']
    assert published['laplacianformer-tiny'].top1 == tiny
