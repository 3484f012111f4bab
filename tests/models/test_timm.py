"""The backbones as models of timm, with what timm's own tests ask of a model."""

import copy
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, fast_with, registered, toolbox_model

timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')

from timm.optim import create_optimizer_v2  # noqa: E402

import mmlaplace.timm  # noqa: E402  (registers)
from mmlaplace.engine import load_weights  # noqa: E402
from mmlaplace.model_zoo import get_config  # noqa: E402
from mmlaplace.models import PyramidBackbone  # noqa: E402
from mmlaplace.models.backbones.hosts import MICRO, arch  # noqa: E402

# The smallest of each family.
SMALL = {
    'laplacianformer_micro': {},
    'soft_micro': {},
    'softplusplus_micro': {},
    'polaformer_pvt_micro': {},
    'polaformer_pvtv2_b0': dict(arch=MICRO),
    'polaformer_swin_micro': {},
    'polaformer_deit_tiny': dict(arch=arch((64,), (3,))),
}
FAST = 'laplacianformer_micro'
each = pytest.mark.parametrize('name', fast_with(SMALL, FAST))
# A pyramid, one with a class token, and a host of one stage.
each_kind = pytest.mark.parametrize(
    'name', fast_with([FAST, 'softplusplus_micro', 'polaformer_deit_tiny'], FAST)
)
WITH_TOKEN = ('soft_micro', 'softplusplus_micro')
# Sums in another order: of a mean over tokens, or of a batch of another size. Values are about 1.
CLOSE = dict(rtol=1e-4, atol=1e-5)
SAME = dict(rtol=0, atol=0)
META = dict(device='meta', dtype=torch.float32)


def create(name, **kwargs):
    return timm.create_model(name, **{**SMALL[name], 'img_size': 64, **kwargs})


@pytest.fixture(scope='module')
def made():
    """Classifiers by name, which tests read from."""
    return {}


@pytest.fixture
def model(made, name):
    if name not in made:
        torch.manual_seed(0)
        made[name] = create(name, num_classes=7).eval()
    return made[name]


@pytest.fixture
def images():
    return torch.randn(2, 3, 64, 96)


def test_every_arch_of_every_family_is_a_model():
    assert len(mmlaplace.timm.MODELS) == sum(
        len(family.backbone.arch_zoo) for family in mmlaplace.timm.FAMILIES.values()
    )
    assert set(mmlaplace.timm.MODELS) <= set(timm.list_models(module='timm'))
    sizes = ('huge', 'large', 'medium', 'micro', 'small', 'tiny')
    assert timm.list_models('*laplacian*') == [f'laplacianformer_{size}' for size in sizes]
    assert 'soft_small_deep' in mmlaplace.timm.MODELS
    assert not timm.list_models('*laplacian*', pretrained=True)
    # Hosts that timm has itself are left to it.
    backbones = {family.backbone.__name__ for family in mmlaplace.timm.FAMILIES.values()}
    assert set(registered(PyramidBackbone)) - backbones == {'PVT', 'PVTv2', 'Swin', 'ViT'}


@pytest.mark.slow
def test_only_the_import_of_the_module_needs_timm_and_it_shadows_nothing():
    code = """
import sys, warnings, mmlaplace
assert "timm" not in sys.modules
sys.modules["timm"] = sys.modules["timm.models"] = None
try:
    import mmlaplace.timm
except ImportError as error:
    print(error)
del sys.modules["timm"], sys.modules["timm.models"]
import timm; before = {name: timm.model_entrypoint(name) for name in timm.list_models()}
warnings.simplefilter("error"); import mmlaplace.timm
assert not set(before) & set(mmlaplace.timm.MODELS)
assert before == {name: timm.model_entrypoint(name) for name in before}
"""
    command = [sys.executable, '-c', code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr
    assert 'pip install "mmlaplace[timm]"' in result.stdout


def test_a_model_that_timm_gets_itself_stays():
    with pytest.warns(UserWarning, match='timm has its own resnet18'):
        mmlaplace.timm._register('resnet18', PyramidBackbone, 'micro')
    assert timm.model_entrypoint('resnet18').__module__ == 'timm.models.resnet'


@each
def test_the_default_cfg_tells_the_truth(name):
    model = timm.create_model(name, **SMALL[name], **META).eval()
    cfg, state_dict = model.default_cfg, model.state_dict()
    assert {t.device.type for t in state_dict.values()} == {'meta'}
    assert cfg['architecture'] == name
    assert (cfg['input_size'], cfg['num_classes']) == ((3, 224, 224), model.num_classes)
    first = state_dict[f'{cfg["first_conv"]}.weight']
    assert first.shape[1] == model.in_chans == 3
    assert state_dict[f'{cfg["classifier"]}.weight'].shape == (1000, model.num_features)
    x = torch.empty(1, 3, 224, 224, device='meta')
    features = model.forward_features(x)
    unpooled = (1, model.num_features, *(cfg['pool_size'] or ()))
    if name in WITH_TOKEN:
        assert cfg['pool_size'] is None
        unpooled = (1, 1 + 7 * 7, model.num_features)
    assert features.shape == unpooled
    pooled = model.forward_head(features, pre_logits=True).shape
    assert pooled == (1, model.num_features) == (1, model.head_hidden_size)
    model.reset_classifier(0)
    assert model(x).shape == pooled and model.num_classes == 0
    model.reset_classifier(0, '')
    assert model(x).shape == unpooled
    model.to(torch.bfloat16).reset_classifier(5, 'avg')
    assert model.get_classifier().weight.dtype == torch.bfloat16
    assert model.get_classifier().weight.device.type == 'meta'
    assert model(x.to(torch.bfloat16)).dtype == torch.bfloat16
    assert not any(module.training for module in model.modules())


@each_kind
def test_train_steps_reach_every_parameter_and_checkpointing_changes_nothing(name, images):
    model, results, kept = create(name, num_classes=5).train(), [], []

    def count(tensor):
        kept[-1] += 1
        return tensor

    for enable in (False, True, False):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        kept.append(0)
        with (
            torch.random.fork_rng(),
            torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor),
        ):
            out = model(images)
            out.square().sum().backward()
        assert [n for n, p in model.named_parameters() if p.grad is None] == []
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    assert results[0][0].shape == (2, 5)
    assert kept[1] != kept[0] == kept[2]  # checkpointing was on, and off again
    for plain, again, off in zip(*results):
        torch.testing.assert_close(again, plain, **SAME)
        torch.testing.assert_close(off, plain, **SAME)


@each
def test_features_are_the_maps_of_the_backbone(name, model, images):
    features = create(name, features_only=True, num_classes=3, out_indices=None).eval()
    single = model.backbone.num_stages == 1
    channels, reduction = features.feature_info.channels(), features.feature_info.reduction()
    assert reduction == ([16, 16, 16] if single else [4, 8, 16, 32])
    missing, unexpected = features.model.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert all(n.startswith(('head.fc.', 'backbone.norm')) for n in unexpected)
    maps = features(images)
    shapes = [(2, c, 64 // r, 96 // r) for c, r in zip(channels, reduction)]
    assert [m.shape for m in maps] == shapes
    options = dict(SMALL[name], img_size=64, out_norms=False)
    family, size = mmlaplace.timm.MODELS[name]
    options.setdefault('arch', size)
    backbone = family.backbone(**options).eval()
    backbone.load_state_dict(features.model.backbone.state_dict())
    theirs = backbone(images)
    for ours, expected in zip(maps[-1:] if single else maps, theirs):
        torch.testing.assert_close(ours, expected, **SAME)
    # No parameter is unused, which data parallel training refuses.
    sum(m.square().sum() for m in features.train()(images)).backward()
    assert not [n for n, p in features.named_parameters() if p.grad is None]


@each_kind
def test_intermediates_end_in_the_features(name, model, images):
    final, maps = model.forward_intermediates(images)
    torch.testing.assert_close(final, model.forward_features(images), **SAME)
    torch.testing.assert_close(model.forward_head(final), model(images), **SAME)
    assert [m.shape[1] for m in maps] == [info['num_chs'] for info in model.feature_info]
    only = dict(intermediates_only=True)
    (last,) = model.forward_intermediates(images, indices=1, norm=True, **only)
    if name in WITH_TOKEN:
        final = final[:, 1:].transpose(1, 2).reshape_as(last)
    torch.testing.assert_close(last, final, **SAME)
    early, (first,) = model.forward_intermediates(images, indices=[0], stop_early=True)
    torch.testing.assert_close(first, maps[0], **SAME)
    if model.backbone.num_stages > 1:  # its only stage has the norm
        torch.testing.assert_close(early, first, **SAME)
    with pytest.raises(ValueError, match="output_fmt must be 'NCHW', got 'NLC'"):
        model.forward_intermediates(images, output_fmt='NLC')
    with pytest.raises(ValueError, match='at least 4 x 4 pixels|at least 16 x 16 pixels'):
        model(torch.zeros(1, 3, 3, 3))


@each_kind
def test_a_pruned_model_computes_the_features_that_are_left(name, model, images):
    for index in (0, 1, 2):
        pruned = copy.deepcopy(model)
        expected, (tap,) = pruned.forward_intermediates(images, indices=[index], stop_early=True)
        assert pruned.prune_intermediate_layers([index]) == [index]
        assert len(pruned.feature_info) == index + 1
        assert pruned.num_features == tap.shape[1]
        if index + 1 < len(model.feature_info):
            expected = tap  # the norm is of the last stage, and goes with it
        features = pruned.forward_features(images)
        torch.testing.assert_close(features, expected, **SAME)
        features.sum().backward()
        assert [n for n, p in pruned.named_parameters() if p.grad is None] == []
        pruned.reset_classifier(3, 'avg')
        assert pruned(images).shape == (2, 3)
    with pytest.raises(ValueError, match="global_pool='token' needs a class token"):
        pruned.reset_classifier(0, 'token')


@pytest.mark.parametrize('name', ['softplusplus_micro'])
def test_pools_take_the_class_token_or_the_others(model, images):
    model = copy.deepcopy(model)
    features = model.forward_features(images)
    expected = dict(token=features[:, 0], avg=features[:, 1:].mean(1), max=features[:, 1:].amax(1))
    expected['avgmax'] = (expected['avg'] + expected['max']) / 2
    assert model.global_pool == 'token'
    for pool, pooled in expected.items():
        model.reset_classifier(0, pool)
        torch.testing.assert_close(model(images), pooled, **CLOSE)
    model.reset_classifier(4, '')
    assert model(images).shape == (2, features.shape[1], 4)
    with pytest.raises(ValueError, match="got 'mean'"):
        model.reset_classifier(4, 'mean')
    model = create(FAST, num_classes=0, global_pool='')
    assert model(images).shape == (2, 128, 2, 3)
    model.reset_classifier(4)  # a map without a pool is not classified
    with pytest.raises(ValueError, match=r"reset_classifier\(4, 'avg'\)"):
        model(images)


def test_options_reach_the_backbone_and_unknown_ones_are_refused():
    rates = dict(drop_rate=0.1, proj_drop_rate=0.2, drop_path_rate=0.3)
    model = create(FAST, in_chans=1, attn_cfg=dict(num_landmarks=9), with_cp=True, **rates)
    block = model.backbone.stages[-1]['blocks'][-1]
    assert model.head['drop'].p == 0.1 and block.drop_path.drop_prob == 0.3
    assert 0.2 in {m.p for m in block.ffn.modules() if isinstance(m, torch.nn.Dropout)}
    assert block.with_cp and model.in_chans == 1
    assert model(torch.randn(1, 1, 64, 64)).shape == (1, 1000)
    for option in ('not_an_option', 'out_type', 'out_indices', 'in_channels'):
        with pytest.raises(TypeError, match=f'LaplacianFormer has no option {option!r}'):
            create(FAST, **{option: 1})
    with pytest.raises(ValueError, match='cannot be compiled by torch.jit.script'):
        create(FAST, scriptable=True)
    assert create(FAST, exportable=True).num_classes == 1000


@each_kind
def test_depths_and_weight_decay_are_those_of_the_backbone(name, model):
    groups = timm.models.group_parameters(model, model.group_matcher(), reverse=True)
    names = [n for n, _ in model.named_parameters()]
    expected = [model.backbone.get_layer_depth(n, 'backbone.')[0] for n in names]
    assert [groups[n] for n in names] == expected
    coarse = model.group_matcher(coarse=True)
    stages = timm.models.group_parameters(model, coarse, reverse=True)
    assert len(set(stages.values())) == model.backbone.num_stages + 2
    exempt = model.no_weight_decay()
    assert exempt == {f'backbone.{n}' for n in model.backbone.no_weight_decay()} <= set(names)
    optimizer = create_optimizer_v2(model, 'adamw', lr=1e-3, weight_decay=0.05)
    still = {id(p) for g in optimizer.param_groups if g['weight_decay'] == 0 for p in g['params']}
    assert {id(p) for n, p in model.named_parameters() if n in exempt} <= still


@pytest.mark.parametrize(('name', 'config'), [
    ('laplacianformer_micro', 'laplacianformer-tiny_8xb128_in1k'),
    pytest.param('softplusplus_micro', 'softpp-tiny_8xb128_in1k', marks=pytest.mark.slow),
])  # fmt: skip
def test_checkpoints_of_classifiers_load_and_give_their_scores(
    name, config, model, images, tmp_path
):
    pytest.importorskip('mmpretrain')
    cfg = get_config(config)
    cfg.model.backbone.update(arch='micro', img_size=64)
    cfg.model.head.update(in_channels=model.num_features, num_classes=7)
    classifier = toolbox_model(cfg).eval()
    classifier.load_state_dict(model.state_dict())
    expected = classifier.head(classifier.extract_feat(images))
    path = tmp_path / 'epoch_1.pth'
    torch.save(dict(state_dict=classifier.state_dict(), meta=dict(epoch=1)), path)
    by_timm = create(name, num_classes=7, checkpoint_path=path).eval()
    by_us = create(name, num_classes=7).eval()
    assert not load_weights(by_us, path).missing
    for loaded in (by_timm, by_us):
        torch.testing.assert_close(loaded(images), expected, **CLOSE)
    # Another number of classes and channels, which timm adapts.
    source = dict(file=str(path), num_classes=7)
    options = dict(pretrained=True, pretrained_cfg_overlay=source, num_classes=2, in_chans=1)
    adapted = create(name, **options)
    first = f'{adapted.default_cfg["first_conv"]}.weight'
    other = next(n for n, p in model.named_parameters() if '.ffn.' in n and p.dim() == 2)
    old, new = model.state_dict(), adapted.state_dict()
    torch.testing.assert_close(new[first], old[first].sum(1, keepdim=True), **CLOSE)
    assert torch.equal(new[other], old[other])
    assert adapted.get_classifier().weight.shape == (2, model.num_features)


def test_pretrained_true_says_that_there_are_no_weights():
    with pytest.raises(ValueError, match=r"no published weights of 'soft_tiny' yet.*dict\(file="):
        timm.create_model('soft_tiny', pretrained=True)


def test_weights_begin_as_the_configs_say():
    torch.manual_seed(0)
    model = create(FAST, num_classes=100)
    weight = model.backbone.stages[-1]['blocks'][0].attn.proj.weight
    # 16,384 draws of std 0.02: three standard errors of theirs are 1.7 %.
    assert weight.std().item() == pytest.approx(0.02, rel=0.02)
    # 12,800 draws of std 0.01, three standard errors are 1.9 %.
    assert model.get_classifier().weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert not model.get_classifier().bias.any()


@pytest.mark.slow
def test_a_model_is_exported_and_is_still_right(images):
    model = create(FAST, num_classes=3, arch=arch((32,) * 4, (1,) * 4)).eval()
    program = torch.export.export(model, (images,))
    torch.testing.assert_close(program.module()(images), model(images), **CLOSE)
