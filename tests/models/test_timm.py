"""The backbones as models of timm, with what timm's own tests ask of a model."""

import copy
import functools
import math
from unittest import mock

import pytest
import torch
from conftest import fast_with, toolbox_model
from golden_files import shapes_of

timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')

from timm.optim import create_optimizer_v2  # noqa: E402
from torch.utils import checkpoint  # noqa: E402

import mmlaplace.timm  # noqa: E402  (registers)
from mmlaplace.checkpoints import PUBLISHED  # noqa: E402
from mmlaplace.model_zoo import get_config, read_models  # noqa: E402
from mmlaplace.models import DINOv2, ViT  # noqa: E402
from mmlaplace.models.pyramid import MICRO, arch  # noqa: E402

# The smallest of each family.
SMALL = {
    'laplacianformer_micro': {},
    'soft_micro': {},
    'softpp_micro': {},
    'polaformer_pvt_micro': {},
    'polaformer_pvtv2_b0': dict(arch=MICRO),
    'polaformer_swin_micro': {},
    'polaformer_deit_tiny': dict(arch=arch((64,), (3,))),
}
FAST = 'laplacianformer_micro'
each = pytest.mark.parametrize('name', fast_with(SMALL, FAST))
# A pyramid, one with a class token, and a host of one stage.
each_kind = pytest.mark.parametrize(
    'name', fast_with([FAST, 'softpp_micro', 'polaformer_deit_tiny'], FAST)
)
# Sums in another order: of a mean over tokens, or of a batch of another size. Values are about 1.
CLOSE = dict(rtol=1e-4, atol=1e-5)
SAME = dict(rtol=0, atol=0)
META = dict(device='meta', dtype=torch.float32)


def create(name, **kwargs):
    return timm.create_model(name, **{**SMALL[name], 'img_size': 64, **kwargs})


@functools.cache
def made(name):
    """A classifier that tests read from."""
    torch.manual_seed(0)
    return create(name, num_classes=7).eval()


@pytest.fixture
def model(name):
    return made(name)


@pytest.fixture
def images():
    return torch.randn(2, 3, 64, 96)


FAMILIES_OF_TIMM = (
    'clip_',
    'deit_',
    'deit3_',
    'dinov2_',
    'dinov3_',
    'efficientvit_',
    'eva02_',
    'mobilevitv2_',
    'pvt_v2_',
    'siglip_',
    'siglip2_',
    'swiftformer_',
    'swin_',
    'swinv2_',
    'xcit_',
)


def test_a_model_of_timm_keeps_its_name():
    own = timm.models.model_entrypoint('pvt_v2_b0')
    ours = mmlaplace.timm.MODELS['laplacianformer_micro']
    with pytest.warns(UserWarning, match='its own pvt_v2_b0, which mmlaplace does not replace'):
        mmlaplace.timm._register('pvt_v2_b0', ours)
    assert timm.models.model_entrypoint('pvt_v2_b0') is own


def test_the_settings_of_a_longer_start_of_a_name_win():
    settings = {'a_b': dict(crop_pct=0.95), 'a': dict(crop_pct=0.9, mean=(0.5,) * 3)}
    family = mock.Mock(timm=settings, licence='MIT')
    expected = dict(crop_pct=0.95, mean=(0.5,) * 3, license='mit')
    assert mmlaplace.timm._settings(family, 'a_b_tiny') == expected
    assert mmlaplace.timm._settings(family, 'a_tiny')['crop_pct'] == 0.9


def test_every_model_that_timm_lacks_is_one():
    models = set(mmlaplace.timm.MODELS)
    assert models <= set(timm.list_models(module='timm'))
    # The others have their family in timm.
    in_timm = {name for name in PUBLISHED if name.startswith(FAMILIES_OF_TIMM)}
    assert set(PUBLISHED) - in_timm <= models
    assert not {name for name in models if name.startswith(FAMILIES_OF_TIMM)}
    assert 'ravlt_tiny' in timm.list_pretrained('ravlt*')
    assert not timm.list_pretrained('*laplacian*')


WITH_CONFIG = {
    model.metadata.get('Published as'): model.name
    for model in read_models()
    if model.task == 'classification'
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize('name', [name for name in WITH_CONFIG if name in mmlaplace.timm.MODELS])
def test_the_pretrained_cfg_evaluates_as_the_config(name):
    cfg, loaded = timm.get_pretrained_cfg(name), get_config(WITH_CONFIG[name])
    pipeline = loaded.test_dataloader.dataset.pipeline
    resize, *crops = (t for t in pipeline if 'Resize' in t.type or 'Crop' in t.type)
    channels, side, _ = cfg.input_size
    scale = resize.scale[0] if isinstance(resize.scale, (list, tuple)) else resize.scale
    assert (channels, side) == (3, crops[0].crop_size if crops else scale)
    assert (cfg.crop_mode == 'squash') == (resize.type == 'Resize')
    assert cfg.interpolation == resize.interpolation
    assert math.floor(side / cfg.crop_pct) == scale  # as timm does
    for name, values in (('mean', cfg.mean), ('std', cfg.std)):
        assert loaded.data_preprocessor[name] == pytest.approx([255 * value for value in values])


# One of each kind of network, with a neck, a class token, windows, and other norms.
PUBLISHED_KINDS = (
    'agent_deit_tiny',
    'agent_swin_tiny',
    'cswin_tiny',
    'flatten_pvt_v2_b0',
    'inline_pvt_tiny',
    'mavit_tiny',
    'mlla_tiny',
    'prepbn_swin_tiny',
    'pvt_tiny',
    'slab_deit_tiny',
    'soft_norm_tiny',
    'h_vit3_tiny',
)


@pytest.mark.sampled(3, 3)
@pytest.mark.parametrize('name', PUBLISHED_KINDS)
def test_a_published_model_has_the_tensors_of_its_file(name):
    with torch.device('meta'):
        released = {key: torch.empty(shape) for key, shape in shapes_of(name).items()}
        model = timm.create_model(name, **META)
    converted = mmlaplace.timm.checkpoint_filter_fn(released, model)
    own = model.state_dict()
    assert {k: v.shape for k, v in converted.items()} == {k: v.shape for k, v in own.items()}
    x = torch.empty(1, 3, *model.pretrained_cfg['input_size'][1:], device='meta')
    features = timm.create_model(name, features_only=True, in_chans=1, num_classes=10, **META)
    assert model.eval()(x).shape == (1, 1000)
    assert len(features.eval()(x[:, :1])) == len(features.feature_info.channels())


def test_a_neck_pools_by_the_mean_alone():
    model = timm.create_model('mavit_tiny', num_classes=0, **META).eval()
    x = torch.empty(1, 3, 64, 64, device='meta')
    assert model(x).shape == (1, 2048) == (1, model.head_hidden_size)
    model.reset_classifier(0, '')
    assert model(x).shape == (1, 512, 2, 2)
    with pytest.raises(ValueError, match="ConvPoolingNeck .* must be 'avg', .* got 'max'"):
        model.reset_classifier(7, 'max')


@each
def test_the_default_cfg_tells_the_truth(name):
    model = timm.create_model(name, **SMALL[name], **META).eval()
    cfg, state_dict = model.default_cfg, model.state_dict()
    assert (cfg['architecture'], cfg['input_size']) == (name, (3, 224, 224))
    assert state_dict[f'{cfg["first_conv"]}.weight'].shape[1] == model.in_chans == 3
    assert state_dict[f'{cfg["classifier"]}.weight'].shape == (1000, model.num_features)
    assert (cfg['pool_size'] is None) == (name in ('soft_micro', 'softpp_micro'))
    x, unpooled = torch.empty(1, 3, 224, 224, device='meta'), (1, 1 + 7 * 7, model.num_features)
    if cfg['pool_size']:
        unpooled = (1, model.num_features, *cfg['pool_size'])
    assert model.forward_features(x).shape == unpooled
    pooled = model.forward_head(model.forward_features(x), pre_logits=True).shape
    model.reset_classifier(0)
    assert model(x).shape == pooled == (1, model.num_features) and model.num_classes == 0
    model.reset_classifier(0, '')
    assert model(x).shape == unpooled
    model.to(torch.bfloat16).reset_classifier(5, 'avg')
    assert model(x.to(torch.bfloat16)).dtype == torch.bfloat16
    assert not any(module.training for module in model.modules())


def assert_all_trained(model, images):
    """No parameter is unused, which data parallel training refuses."""
    outs = model(images)
    sum(out.square().sum() for out in (outs if isinstance(outs, list) else [outs])).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@each_kind
def test_train_steps_reach_every_parameter_and_checkpointing_changes_nothing(name, images):
    model, results = create(name, num_classes=5).train(), []
    for enable in (False, True, False):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        with (
            torch.random.fork_rng(),
            mock.patch.object(checkpoint, 'checkpoint', wraps=checkpoint.checkpoint) as called,
        ):
            assert_all_trained(model, images)
        assert called.called == enable
        results.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*results[:2], **SAME)


@each
def test_features_are_the_maps_of_the_backbone(name, model, images):
    features = create(name, features_only=True, num_classes=3, out_indices=None).eval()
    single = model.backbone.num_stages == 1
    channels, reduction = features.feature_info.channels(), features.feature_info.reduction()
    assert reduction == ([16, 16, 16] if single else [4, 8, 16, 32])
    assert not features.model.load_state_dict(model.state_dict(), strict=False).missing_keys
    maps = features(images)
    sizes = [(2, c, 64 // r, 96 // r) for c, r in zip(channels, reduction)]
    assert [m.shape for m in maps] == sizes
    cls, options, _ = mmlaplace.timm.MODELS[name]
    options = dict(options, **SMALL[name], img_size=64, out_norms=False)
    backbone = cls(**options).eval()
    backbone.load_state_dict(features.model.backbone.state_dict())
    torch.testing.assert_close(maps[-1:] if single else maps, [*backbone(images)], **SAME)
    assert_all_trained(features.train(), images)


@each_kind
def test_features_can_come_from_a_graph(name, model, images):
    """Tokens ``(B, N, C)`` of the blocks, as timm's graphs of its vision transformers give."""
    pytest.importorskip('torchvision')
    graph = create(name, features_only=True, feature_cls='fx').eval()
    assert not graph.graph_module.load_state_dict(model.state_dict(), strict=False).missing_keys
    features = model.forward_intermediates(images, intermediates_only=True)
    for tokens, expected in zip(graph(images), features):
        expected = expected.flatten(2).transpose(1, 2)
        torch.testing.assert_close(tokens[:, -expected.shape[1] :], expected, **SAME)


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
        torch.testing.assert_close(pruned.forward_features(images), expected, **SAME)
        pruned.reset_classifier(3, 'avg')
        assert pruned(images).shape == (2, 3)
        assert_all_trained(pruned, images)


@each_kind
def test_stages_are_called_and_end_after_the_last_block_that_is_wanted(name, model, images):
    model, called = copy.deepcopy(model), []
    stages = model.backbone.stages
    for i, stage in enumerate(stages):
        stage.register_forward_hook(lambda *_, i=i: called.append(i))
        for j, block in enumerate(stage['blocks']):
            block.register_forward_hook(lambda *_, place=(i, j): called.append(place))
    for index, info in enumerate(model.feature_info):
        *_, i, _, j = info['module'].split('.')  # backbone.stages.i.blocks.j
        called.clear()
        options = dict(indices=[index], norm=True, stop_early=True)
        out, (normed,) = model.forward_intermediates(images, **options)
        assert called[-2:] == [(int(i), int(j)), int(i)]
        tokens = out if out.dim() == 3 else out.flatten(2).mT
        expected = normed.flatten(2).mT
        torch.testing.assert_close(tokens[:, -expected.shape[1] :], expected, **SAME)
    called.clear()
    model(images)
    assert [place for place in called if isinstance(place, int)] == list(range(len(stages)))


def test_all_tokens_of_no_place_come_with_features_and_two_class_tokens_are_refused():
    tiny = dict(embed_dims=(12,), num_heads=(3,), depths=(2,), ffn_ratios=(2,))
    model = mmlaplace.timm.TimmClassifier(DINOv2, tiny, num_registers=4, img_size=28)
    x = torch.randn(2, 3, 28, 42)
    features = model.forward_intermediates(x, return_prefix_tokens=True, intermediates_only=True)
    assert [tuple(tokens.shape) for _, tokens in features] == [(2, 5, 12)] * 2
    out, features = model.forward_intermediates(x, norm=True, return_prefix_tokens=True)
    torch.testing.assert_close(features[-1][1], out[:, :5], **SAME)  # the first ones
    with pytest.raises(ValueError, match='with_dist_token=True has two class tokens'):
        mmlaplace.timm.TimmClassifier(ViT, 'tiny', with_dist_token=True)


@pytest.mark.parametrize('name', ['softpp_micro'])
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
    for wrong, match in (((4, 'mean'), "got 'mean'"), ((-1,), 'a number from 0, got -1')):
        with pytest.raises(ValueError, match=match):
            model.reset_classifier(*wrong)
    assert model.num_classes == 4 and model.get_classifier().out_features == 4


@pytest.mark.parametrize('name', [FAST])
def test_hooks_of_the_head_act(model, images):
    hooked = copy.deepcopy(model)
    hooked.head.register_forward_hook(lambda head, inputs, out: 2 * out)
    torch.testing.assert_close(hooked(images), 2 * model(images), **SAME)


def test_options_reach_the_backbone_and_unknown_ones_are_refused():
    rates = dict(drop_rate=0.1, proj_drop_rate=0.2, drop_path_rate=0.3)
    model = create(FAST, in_chans=1, attn_cfg=dict(num_landmarks=9), with_cp=True, **rates)
    last = model.backbone.stages[-1]['blocks'][-1]
    assert model.head['drop'].p == 0.1 and last.drop_path.drop_prob == 0.3
    assert 0.2 in {m.p for m in last.ffn.modules() if isinstance(m, torch.nn.Dropout)}
    assert last.with_cp and model.in_chans == 1
    assert model(torch.randn(1, 1, 64, 64)).shape == (1, 1000)
    for option in ('not_an_option', 'out_indices'):
        with pytest.raises(TypeError, match=f'LaplacianFormer has no option {option!r}'):
            create(FAST, **{option: 1})
    with pytest.raises(ValueError, match=r'scriptable=True cannot be had.*torch\.export'):
        create(FAST, scriptable=True)


def test_dropout_of_the_head_acts_in_training_alone():
    torch.manual_seed(0)
    model = create(FAST, num_classes=7, drop_rate=0.5)
    features = torch.ones(1, model.num_features, 1, 1)
    dropped = model.forward_head(features, pre_logits=True)
    assert sorted(dropped.unique().tolist()) == [0, 2]
    assert (model.eval().forward_head(features, pre_logits=True) == 1).all()


@pytest.mark.parametrize('name', [FAST])
def test_coarse_groups_are_stages(model):
    groups = timm.models.group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    of_blocks = {name: depth for name, depth in groups.items() if '.blocks.' in name}
    stages = {int(name.split('.')[2]) for name in of_blocks}
    depths = {(int(name.split('.')[2]), depth) for name, depth in of_blocks.items()}
    assert len(depths) == len(stages) == 4


def test_what_a_user_overlays_stays_beside_the_released_file(monkeypatch):
    monkeypatch.setattr(mmlaplace.timm, 'released_place', lambda address: 'file.pth')
    with mock.patch.object(mmlaplace.timm, 'build_model_with_cfg') as build:
        timm.create_model('ravlt_tiny', pretrained=True, pretrained_cfg_overlay=dict(crop_pct=0.5))
    overlay = build.call_args.kwargs['pretrained_cfg_overlay']
    assert overlay['crop_pct'] == 0.5 and overlay['file'] == 'mmlaplace://ravlt-tiny'


@each_kind
def test_depths_and_weight_decay_are_those_of_the_backbone(name, model):
    groups = timm.models.group_parameters(model, model.group_matcher(), reverse=True)
    names = dict(model.named_parameters())
    assert groups == {n: model.backbone.get_layer_depth(n, 'backbone.')[0] for n in names}
    exempt = {f'backbone.{n}' for n in model.backbone.no_weight_decay()}
    assert model.no_weight_decay() == exempt
    optimizer = create_optimizer_v2(model, 'adamw', lr=1e-3, weight_decay=0.05)
    still = {id(p) for g in optimizer.param_groups if g['weight_decay'] == 0 for p in g['params']}
    assert {id(names[n]) for n in exempt} <= still


@pytest.mark.parametrize('name', [FAST])
def test_checkpoints_of_classifiers_load_and_give_their_scores(name, model, images, tmp_path):
    pytest.importorskip('mmpretrain')
    cfg = get_config('laplacianformer-tiny_8xb128_in1k')
    cfg.model.backbone.update(arch='micro', img_size=64)
    cfg.model.head.update(in_channels=model.num_features, num_classes=7)
    classifier = toolbox_model(cfg).eval()
    classifier.load_state_dict(model.state_dict())
    expected = classifier.head(classifier.extract_feat(images))
    path = tmp_path / 'epoch_1.pth'
    torch.save(dict(state_dict=classifier.state_dict(), meta=dict(epoch=1)), path)
    by_timm = create(name, num_classes=7, checkpoint_path=path).eval()
    torch.testing.assert_close(by_timm(images), expected, **CLOSE)
    # Another number of classes and channels, which timm adapts.
    source = dict(pretrained=True, pretrained_cfg_overlay=dict(file=str(path), num_classes=7))
    adapted = create(name, num_classes=2, in_chans=1, **source)
    first = f'{adapted.default_cfg["first_conv"]}.weight'
    summed = model.state_dict()[first].sum(1, keepdim=True)
    torch.testing.assert_close(adapted.state_dict()[first], summed, **CLOSE)
    assert adapted.get_classifier().weight.shape == (2, model.num_features)
