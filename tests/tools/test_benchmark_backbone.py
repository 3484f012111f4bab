"""The benchmark of backbones takes any by name, loses none for another's failure, and reports."""

import copy
import json
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


@pytest.fixture
def timm(monkeypatch):
    """A timm with one model, whose branches can be merged."""

    class Model(nn.Module):
        def __init__(self, num_classes):
            super().__init__()
            self.conv, self.num_classes, self.merged = nn.Conv2d(3, 4, 3), num_classes, False

        def forward(self, x):
            return self.conv(x).mean((2, 3))  # one tensor, not a tuple

    def reparameterize_model(model):
        merged = copy.deepcopy(model)
        merged.merged = True
        return merged

    module, utils = types.ModuleType('timm'), types.ModuleType('timm.utils')
    module.list_models = lambda: ['little_net']
    module.create_model = lambda name, pretrained, num_classes: Model(num_classes)
    utils.reparameterize_model = reparameterize_model
    monkeypatch.setitem(sys.modules, 'timm', module)
    monkeypatch.setitem(sys.modules, 'timm.utils', utils)
    contenders.catalogue.cache_clear()
    yield module
    contenders.catalogue.cache_clear()


@pytest.fixture
def no_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, 'timm', None)  # its import fails
    contenders.catalogue.cache_clear()


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
        assert row['median ms'] > 0 and row['runs'] > 0
        assert row['ms per image'] == row['median ms'] / 2
        assert row['images per second'] * row['ms per image'] == pytest.approx(1000)
    assert written['machine']['threads'] == '1' and written['machine']['torch']
    assert all(min(Image.open(plot).size) > 300 for plot in plots)
    printed = capsys.readouterr().out
    assert 'ResNet-50' in printed  # is not in the plot of top-1, as the tool says
    assert f'x the time of {names[1]}' in printed
    line = next(line for line in printed.splitlines() if names[1] in line and '│' in line)
    assert ' 1.00 ' in line
    with pytest.raises(SystemExit, match='2'):
        run(*command, force=())
    assert '--force replaces it' in capsys.readouterr().err


def test_without_names_it_sweeps_over_sizes_as_the_gpu_check_has_it(monkeypatch, tmp_path):
    options = ['--device', 'cpu', '--out', str(tmp_path / 'a'), '--plot', str(tmp_path / 'b')]
    monkeypatch.setattr(sys, 'argv', ['benchmark_backbone.py', *options])
    args = tool.parse_args()
    assert args.contenders == ['laplacianformer-tiny', 'laplacianformer-tiny+SoftmaxAttention']
    assert args.sizes[0] == (224, 1) and args.sizes[-1] == (1536, 1)
    assert {batch for _, batch in args.sizes} == {1}  # so there are exponents


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
        'mmpretrain:ConvNeXt-atto', 'mmpretrain:ResNet-18', 'mmpretrain:SwinTransformer-tiny',
        'mmdet:PyramidVisionTransformer-tiny', 'mmdet:PyramidVisionTransformerV2-b0',
        'mmseg:MixVisionTransformer',
    ],
)  # fmt: skip
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
    if isinstance(getattr(model, 'out_indices', None), tuple):
        assert len(model.out_indices) == 1 or toolbox == 'mmseg'


@pytest.mark.parametrize(
    ('size', 'depths', 'dims'), [('b0', [2, 2, 2, 2], 256), ('b2', [3, 4, 6, 3], 512)]
)
def test_sizes_that_mmdet_does_not_name_are_those_of_its_configs(size, depths, dims):
    pytest.importorskip('mmdet')
    model = contenders.find(f'mmdet:PyramidVisionTransformerV2-{size}')(False)
    hub = contenders.hub.get_config(f'mmdet::pvt/retinanet_pvtv2-{size}_fpn_1x_coco.py')
    assert hub.model.backbone.num_layers == [len(layer[1]) for layer in model.layers] == depths
    assert model.layers[-1][-1].normalized_shape == (dims,)


def test_the_backbone_of_a_config_stays_as_it_is(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text("model = dict(backbone=dict(type='SOFT', arch='micro', out_indices=(1, 2)))\n")
    model = contenders.find(str(path))(False)
    assert type(model).__name__ == 'SOFT' and model.out_indices == (1, 2)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('other.py', 'there is no such config'),
        ('laplacianformer-tyni', 'Similar names are .*laplacianformer-tiny.*--list'),
        ('laplacianformer-tiny+NoAttention', 'an attention after it.*SoftmaxAttention'),
        ('torchhub:resnet18', "no source 'torchhub'; take one of mmpretrain, mmdet, mmseg, timm"),
        # mmpretrain's registry finds our Swin and PVT, as the root is its parent.
        ('mmpretrain:Swin-tiny', 'no such backbone'),
        ('mmpretrain:PVT-tiny', 'no such backbone'),
    ],
)
def test_an_unknown_name_says_which_are_known(name, message):
    pytest.importorskip('mmpretrain')
    with pytest.raises(ValueError, match=message):
        contenders.find(name)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['laplacianformer-tyni'], "'laplacianformer-tyni': there is no such backbone"),
        (['--base', 'soft-tiny'], f'--base must be one of {MICRO}, got soft-tiny'),
        *((['--sizes', size], f"'{size}': give SIDExBATCH")
          for size in ('224x', 'x8', '224x0', '0', '2x2x2')),
    ],
)  # fmt: skip
def test_a_mistyped_word_stops_the_tool_before_it_measures(arguments, message, run, capsys):
    with pytest.raises(SystemExit, match='2'):
        run(MICRO, *arguments)
    assert message in capsys.readouterr().err


def test_models_of_timm_are_measured_with_their_branches_merged(timm, run):
    assert contenders.find(LITTLE)(False).merged and not contenders.find(LITTLE)(True).merged
    status, written = run(MICRO, LITTLE, '--sizes', '32', '--train')
    assert status == 0 and not any(row['failure'] for row in written['rows'])
    assert written['models'][LITTLE]['parameters'] == 4 * (27 + 1)


def test_a_missing_timm_names_the_fix_and_the_others_are_measured(no_timm, run, capsys):
    status, written = run(MICRO, LITTLE, '--sizes', '32')
    assert status == 0
    assert 'pip install timm' in written['failures'][LITTLE]
    assert [row['contender'] for row in written['rows']] == [MICRO]
    printed = capsys.readouterr()
    (line,) = (line for line in printed.out.splitlines() if LITTLE in line)
    assert 'pip install timm' in line and 'pip install timm' in printed.err
    assert run(LITTLE, '--sizes', '32')[0] == 1


class Hungry(nn.Linear):
    def forward(self, x):
        if x.size(-1) > 32:
            raise torch.cuda.OutOfMemoryError('out of memory: tried to\nallocate 1 EB')
        return super().forward(x)


def test_a_failure_is_named_in_its_row_and_costs_the_others_nothing(timm, run, capsys):
    timm.create_model = lambda name, **_: Hungry(32, 2)
    status, written = run(LITTLE, MICRO, '--sizes', '32', '64')
    assert status == 0
    failures = {(row['contender'], row['side']): row['failure'] for row in written['rows']}
    assert 'out of memory: tried to\nallocate 1 EB' in failures[LITTLE, 64]
    assert sum(map(bool, failures.values())) == 1
    assert 'out of memory: tried to allocate 1 EB' in capsys.readouterr().out
    timm.create_model = lambda name, **_: nn.Linear(-1, 2)  # cannot be built
    status, written = run(MICRO, LITTLE, '--sizes', '32')
    assert status == 0 and written['failures'][LITTLE].startswith('RuntimeError: ')


def test_a_slow_contender_sits_out_of_larger_sizes(run):
    _, written = run(MICRO, '--sizes', '64', '32', '96', '--limit', '0')
    reasons = [bool(row['failure']) for row in written['rows']]
    assert reasons == [False, False, True]  # 32 is smaller than 64
    assert 'sat out' in written['rows'][2]['failure']


def test_modes_are_compiled_and_under_autocast(run, monkeypatch, timm):
    seen, compile_ = [], torch.compile

    class Watching(nn.Conv2d):
        def forward(self, x):
            out = super().forward(x)
            seen.append(out.dtype)
            return out

    def broken(graph, inputs):
        raise RuntimeError('no C++ compiler')

    timm.create_model = lambda name, **_: Watching(3, 4, 3)
    # Traced as for inductor, whose code takes a minute to build.
    monkeypatch.setattr(torch, 'compile', partial(compile_, backend='eager'))
    modes = ['eager', 'compiled', 'bf16', 'compiled-bf16']
    status, written = run(LITTLE, '--sizes', '32', '40', '--modes', *modes)
    assert status == 0 and not any(row['failure'] for row in written['rows'])
    assert [row['mode'] for row in written['rows']] == 2 * modes
    assert set(seen) == {torch.float32, torch.bfloat16}
    assert set(written['exponents'][LITTLE]) == set(modes)
    monkeypatch.setattr(torch, 'compile', partial(compile_, backend=broken))
    status, written = run(LITTLE, '--sizes', '32', '--modes', 'compiled', 'eager')
    compiled, eager = written['rows']
    assert status == 0 and 'no C++ compiler' in compiled['failure'] and not eager['failure']


def test_the_list_has_all_and_says_what_is_missing(no_timm, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['benchmark_backbone.py', '--list', '*former-tiny'])
    with pytest.raises(SystemExit, match='0'):
        tool.main()
    printed = capsys.readouterr()
    lines = [line for line in printed.out.splitlines() if line and 'OneDL' not in line]
    assert 'laplacianformer-tiny' in lines and all('former-tiny' in line for line in lines)
    assert 'pip install timm' in printed.err


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
    rows = [
        [cell.strip() for cell in line.strip().strip('|').split('|')]
        for line in printed.splitlines()
        if line.startswith(('| laplacian', '| mmpretrain'))
    ]
    assert rows[0] == ['laplacianformer-tiny', '12.0', '81.4', '10.0', '100.0', '0.50', '10', '']
    assert rows[1][5] == '1.00'
    assert rows[2][2] == '-'  # its top-1 is for another size
    assert '| timm:fastvit_t8' in printed and 'no timm' in printed
    assert 'top1.png is without' in printed and 'FastViT-T8' in printed
    assert min(Image.open(plot).size) > 300
    path.write_text('{"arch": "tiny"}')
    monkeypatch.setattr(sys, 'argv', ['backbone_report.py', str(path)])
    with pytest.raises(SystemExit):
        report_tool.main()
    assert 'measure again' in capsys.readouterr().err


def test_exponents_need_one_batch_and_points_the_published_size():
    result, names = synthetic(), ('laplacianformer-tiny', 'mmpretrain:ResNet-50')
    # Of four times the pixels in four times the time.
    expected = {name: {'eager': pytest.approx(1.0)} for name in names}
    assert backbone_report.exponents(result['rows']) == expected
    batches = [{**row, 'batch': row['side']} for row in result['rows']]
    assert backbone_report.exponents(batches) == {}
    points = backbone_report.top1_points(result, 'eager')
    assert points == {names[0]: (100.0, 8), names[1]: (50.0, 8)}
    missing = set(backbone_report.not_measured(result))
    assert {'ResNet-18', 'Swin-T', 'FastViT-T8'} <= missing and 'ResNet-50' not in missing


def test_published_figures_have_a_source_and_name_contenders():
    published = published_top1.published()
    for name, paper in published.items():
        assert 60 < paper.top1 < 90 and paper.side % 32 == 0
        assert paper.source and paper.recipe
        assert paper.ours == paper.source.startswith('configs/')
        if not name.startswith('timm:'):
            try:
                contenders.find(name)
            except ImportError as error:
                pytest.skip(str(error))
    zoo = {model.name: model.metadata for model in read_models()}
    tiny = zoo['laplacianformer-tiny_8xb128_in1k']['Published']['Top 1 Accuracy']
    assert published['laplacianformer-tiny'].top1 == tiny
    families = {published[name].family for name in published_top1.peers()}
    assert {'PVTv2', 'Swin', 'ConvNeXt', 'ResNet', 'EfficientViT', 'FastViT', 'RepViT'} <= families
