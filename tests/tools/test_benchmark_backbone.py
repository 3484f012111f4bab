"""The benchmark of backbones takes any by name, and loses none for the failure of another."""

import copy
import json
import subprocess
import sys
import types
from functools import partial

import pytest
import torch
from conftest import ROOT, load_tool, registered
from mmengine.registry import MODELS
from PIL import Image
from torch import nn

from mmlaplace.comparison import backbone_contenders
from mmlaplace.models import PyramidBackbone

TOOL = ROOT / 'tools/benchmarks/benchmark_backbone.py'
MICRO = 'laplacianformer-micro'


@pytest.fixture
def contenders():
    return backbone_contenders


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the tool in this process for one tiny round; returns its status and what it wrote."""
    tool, out = load_tool(str(TOOL.relative_to(ROOT))), tmp_path / 'backbone.json'
    monkeypatch.setenv('COLUMNS', '250')  # so that no cell is wrapped

    def run(*arguments):
        options = ['--rounds', '1', '--out', str(out), '--force']
        monkeypatch.setattr(sys, 'argv', [TOOL.name, *arguments, *options])
        status = tool.main()
        return status, json.loads(out.read_text())

    return run


@pytest.fixture
def timm(monkeypatch, contenders):
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
def no_timm(monkeypatch, contenders):
    monkeypatch.setitem(sys.modules, 'timm', None)  # its import fails
    contenders.catalogue.cache_clear()


@pytest.mark.slow
def test_the_tool_writes_json_and_plots_and_keeps_what_is_there(tmp_path):
    out, plot, top1 = (tmp_path / name for name in ('a.json', 'a.png', 'top1.png'))
    names = [MICRO, f'{MICRO}+SoftmaxAttention']
    command = [
        sys.executable, TOOL, *names, '--sizes', '32', '64', '--rounds', '1', '--train',
        '--threads', '1', '--out', out, '--plot', plot, '--plot-top1', top1,
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    written = json.loads(out.read_text())
    assert [(row['contender'], row['side']) for row in written['rows']] == [
        (name, side) for side in (32, 64) for name in names
    ]
    assert all(row['median ms'] > 0 and row['runs'] > 0 for row in written['rows'])
    assert set(written['exponents']) == set(names)
    assert written['machine']['threads'] == '1' and written['machine']['torch']
    assert min(Image.open(plot).size) > 300 and min(Image.open(top1).size) > 300
    assert 'ResNet-50' in result.stdout  # is not in the plot of top-1, as the tool says
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert '--force replaces it' in result.stderr


def test_without_names_it_sweeps_over_sizes_as_the_gpu_check_has_it(monkeypatch, tmp_path):
    tool = load_tool(str(TOOL.relative_to(ROOT)))
    options = ['--device', 'cpu', '--out', str(tmp_path / 'a'), '--plot', str(tmp_path / 'b')]
    monkeypatch.setattr(sys, 'argv', [TOOL.name, *options, '--force'])
    args = tool.parse_args()
    assert args.contenders == ['laplacianformer-tiny', 'laplacianformer-tiny+SoftmaxAttention']
    assert args.sizes[0] == (224, 1) and args.sizes[-1] == (1536, 1)
    assert {batch for _, batch in args.sizes} == {1}  # so there are exponents


@pytest.mark.slow
def test_any_attentions_are_compared_with_the_base(run, capsys):
    names = [f'{MICRO}+{kind}' for kind in ('SOFTAttention', 'SoftmaxAttention', 'PolaAttention')]
    status, written = run(*names, '--sizes', '32x2', '--base', names[1])
    assert status == 0
    assert [row['contender'] for row in written['rows']] == names
    for row in written['rows']:
        assert row['ms per image'] == row['median ms'] / 2
        # Equal but for rounding.
        assert row['images per second'] * row['ms per image'] == pytest.approx(1000)
    printed = capsys.readouterr().out
    assert f'x the time of {names[1]}' in printed
    line = next(line for line in printed.splitlines() if names[1] in line and '│' in line)
    assert ' 1.00 ' in line


def test_every_backbone_of_ours_with_an_arch_is_a_contender(contenders):
    known = contenders.catalogue('')
    for family in registered(PyramidBackbone):
        cls = MODELS.get(family)
        assert {f'{family.lower()}-{arch}' for arch in cls.arch_zoo} <= set(known)
        first = next(iter(cls.arch_zoo))
        model = contenders.find(f'{family.lower()}-{first}')(False)
        assert type(model) is cls
        assert model.out_indices == (model.num_stages - 1,)


@pytest.mark.parametrize(
    'name',
    [
        'mmpretrain:ConvNeXt-atto',
        'mmpretrain:ResNet-18',
        'mmpretrain:SwinTransformer-tiny',
        'mmdet:PyramidVisionTransformer-tiny',
        'mmdet:PyramidVisionTransformerV2-b0',
        'mmseg:MixVisionTransformer',
    ],
)
def test_the_backbones_of_a_toolbox_are_its_own(contenders, name):
    toolbox = name.partition(':')[0]
    try:
        contenders.catalogue(toolbox)
    except ImportError as error:
        pytest.skip(str(error))
    model = contenders.find(name)(False)
    assert type(model).__module__.startswith(f'{toolbox}.models.backbones.')
    model.eval()
    with torch.no_grad():
        out = model(torch.randn(1, 3, 224, 224))[-1]  # Swin takes no less
    assert out.shape[0] == 1
    if hasattr(model, 'out_indices') and isinstance(model.out_indices, tuple):
        assert len(model.out_indices) == 1 or toolbox == 'mmseg'


def test_ours_under_the_scope_of_a_toolbox_is_not_its_own(contenders):
    pytest.importorskip('mmpretrain')
    # mmpretrain's registry finds our Swin and PVT, as the root is its parent.
    for name in ('mmpretrain:Swin-tiny', 'mmpretrain:PVT-tiny'):
        with pytest.raises(ValueError, match='there is no such backbone; near are'):
            contenders.find(name)


@pytest.mark.parametrize(
    'size, depths, dims', [('b0', [2, 2, 2, 2], 256), ('b2', [3, 4, 6, 3], 512)]
)
def test_sizes_that_mmdet_does_not_name_are_those_of_its_configs(contenders, size, depths, dims):
    pytest.importorskip('mmdet')
    model = contenders.find(f'mmdet:PyramidVisionTransformerV2-{size}')(False)
    hub = contenders.hub.get_config(f'mmdet::pvt/retinanet_pvtv2-{size}_fpn_1x_coco.py')
    assert hub.model.backbone.num_layers == depths
    assert [len(layer[1]) for layer in model.layers] == depths
    assert model.layers[-1][-1].normalized_shape == (dims,)


def test_the_backbone_of_a_config_stays_as_it_is(contenders, tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text("model = dict(backbone=dict(type='SOFT', arch='micro', out_indices=(1, 2)))\n")
    model = contenders.find(str(path))(False)
    assert type(model).__name__ == 'SOFT' and model.out_indices == (1, 2)
    with pytest.raises(ValueError, match='there is no such config'):
        contenders.find(str(tmp_path / 'other.py'))


@pytest.mark.parametrize(
    'name, message',
    [
        ('laplacianformer-tyni', 'near are .*laplacianformer-tiny.*--list'),
        ('laplacianformer-tiny+NoAttention', 'after [+] comes an attention.*SoftmaxAttention'),
        ('torchhub:resnet18', "there is no 'torchhub', but mmpretrain, mmdet, mmseg, timm"),
    ],
)
def test_an_unknown_name_says_which_are_known(contenders, name, message):
    with pytest.raises(ValueError, match=message):
        contenders.find(name)


def test_a_mistyped_contender_stops_the_tool_before_it_measures(run, capsys):
    with pytest.raises(SystemExit):
        run(MICRO, 'laplacianformer-tyni')
    assert "'laplacianformer-tyni': there is no such backbone" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(MICRO, '--base', 'soft-tiny')
    assert f'--base soft-tiny: is none of {MICRO}' in capsys.readouterr().err
    for size in ('224x', 'x8', '224x0', '0', '2x2x2'):
        with pytest.raises(SystemExit):
            run(MICRO, '--sizes', size)
        assert f"'{size}': give SIDExBATCH" in capsys.readouterr().err


def test_models_of_timm_are_measured_with_their_branches_merged(timm, contenders, run):
    assert contenders.find('timm:little_net')(False).merged
    assert not contenders.find('timm:little_net')(True).merged
    status, written = run(MICRO, 'timm:little_net', '--sizes', '32', '--train')
    assert status == 0
    assert not any(row['failure'] for row in written['rows'])
    assert written['models']['timm:little_net']['parameters'] == 4 * (27 + 1)


def test_a_missing_timm_names_the_fix_and_the_others_are_measured(no_timm, run, capsys):
    status, written = run(MICRO, 'timm:little_net', '--sizes', '32')
    assert status == 0
    assert 'pip install timm' in written['failures']['timm:little_net']
    assert [row['contender'] for row in written['rows']] == [MICRO]
    printed = capsys.readouterr()
    line = next(line for line in printed.out.splitlines() if 'timm:little_net' in line)
    assert 'pip install timm' in line
    assert 'pip install timm' in printed.err
    assert run('timm:little_net', '--sizes', '32')[0] == 1


def test_a_failure_is_named_in_its_row_and_costs_the_others_nothing(timm, run, capsys):
    class Hungry(nn.Linear):
        def forward(self, x):
            if x.size(-1) > 32:
                raise torch.cuda.OutOfMemoryError('out of memory: tried to\nallocate 1 EB')
            return super().forward(x)

    timm.create_model = lambda name, **_: Hungry(32, 2)
    status, written = run('timm:little_net', MICRO, '--sizes', '32', '64')
    assert status == 0
    failures = {(row['contender'], row['side']): row['failure'] for row in written['rows']}
    assert 'out of memory: tried to\nallocate 1 EB' in failures['timm:little_net', 64]
    assert sum(map(bool, failures.values())) == 1
    assert 'out of memory: tried to allocate 1 EB' in capsys.readouterr().out


def test_a_contender_that_cannot_be_built_costs_the_others_nothing(timm, run):
    def create_model(name, **_):
        raise RuntimeError('no such kernel')

    timm.create_model = create_model
    status, written = run(MICRO, 'timm:little_net', '--sizes', '32')
    assert status == 0
    assert written['failures'] == {'timm:little_net': 'RuntimeError: no such kernel'}


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

    timm.create_model = lambda name, **_: Watching(3, 4, 3)
    # Traced as for inductor, whose code takes a minute to build.
    monkeypatch.setattr(torch, 'compile', partial(compile_, backend='eager'))
    modes = ['eager', 'compiled', 'bf16', 'compiled-bf16']
    status, written = run('timm:little_net', '--sizes', '32', '40', '--modes', *modes)
    assert status == 0
    assert [row['mode'] for row in written['rows']] == 2 * modes
    assert not any(row['failure'] for row in written['rows'])
    assert set(seen) == {torch.float32, torch.bfloat16}
    assert set(written['exponents']['timm:little_net']) == set(modes)


def test_a_compiler_that_fails_is_named_and_the_eager_mode_stays(run, monkeypatch, timm):
    def broken(graph, inputs):
        raise RuntimeError('no C++ compiler')

    monkeypatch.setattr(torch, 'compile', partial(torch.compile, backend=broken))
    status, written = run('timm:little_net', '--sizes', '32', '--modes', 'compiled', 'eager')
    assert status == 0
    compiled, eager = written['rows']
    assert 'no C++ compiler' in compiled['failure'] and not eager['failure']


def test_the_list_has_all_and_says_what_is_missing(no_timm, monkeypatch, capsys):
    tool = load_tool(str(TOOL.relative_to(ROOT)))
    monkeypatch.setattr(sys, 'argv', [TOOL.name, '--list', '*former-tiny'])
    with pytest.raises(SystemExit) as stopped:
        tool.main()
    assert stopped.value.code == 0
    printed = capsys.readouterr()
    assert 'laplacianformer-tiny' in printed.out.splitlines()
    assert not any(line and 'former-tiny' not in line for line in printed.out.splitlines()
                   if 'OneDL' not in line)  # fmt: skip
    assert 'pip install timm' in printed.err
