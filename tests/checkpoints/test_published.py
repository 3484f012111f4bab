"""Released weights convert on the way, whole, and give the outputs that they have in timm."""

import re

import pytest
import torch
from conftest import ROOT, output_of, refusal_of
from golden_files import manifests, shapes_of
from mmengine.registry import MODELS
from saved_weights import assert_refused
from small_backbone import ARCH

from mmlaplace import backbone_config
from mmlaplace.checkpoints import PUBLISHED, load_weights
from mmlaplace.checkpoints.published import describe, recognise
from mmlaplace.checkpoints.released import released_place
from mmlaplace.commands.converters import convert
from mmlaplace.models import RAVLT, ConvPoolingNeck

TOOL = ROOT / 'tools/model_converters/convert.py'
# Two orders of the same fp32 sums.
TOLERANCE = 1e-5
TWO_BLOCKS = dict(depth=2), dict(depths=(2,))
NARROW = dict(depths=(2, 2, 2, 1), num_heads=(1, 2, 4, 8))
NARROW_SWIN = dict(NARROW, embed_dim=32), dict(NARROW, embed_dims=(32, 64, 128, 256))
# By the published name: the name in timm, its options, the arch here, and the image.
SMALL = {
    'pvt_v2_b0': ('pvt_v2_b0', dict(depths=(1, 2, 1, 1)), dict(depths=(1, 2, 1, 1)), (64, 96)),
    'pvt_v2_b2_li': ('pvt_v2_b2_li', dict(depths=(1,) * 4), dict(depths=(1,) * 4), (64, 320)),
    'swin_tiny': ('swin_tiny_patch4_window7_224', *NARROW_SWIN, (224, 448)),
    'deit_tiny': ('deit_tiny_patch16_224', *TWO_BLOCKS, (64, 96)),
    'deit_tiny_distilled': ('deit_tiny_distilled_patch16_224', *TWO_BLOCKS, (64, 96)),
    'deit3_small': ('deit3_small_patch16_224', *TWO_BLOCKS, (64, 96)),
    'dinov2_small_reg4': ('vit_small_patch14_reg4_dinov2', *TWO_BLOCKS, (56, 84)),
    'swinv2_tiny_window8_256': ('swinv2_tiny_window8_256', *NARROW_SWIN, (256, 256)),
    'xcit_tiny_12_p8': ('xcit_tiny_12_p8_224', *TWO_BLOCKS, (64, 96)),
    'efficientvit_b0': (
        'efficientvit_b0',
        dict(depths=(1, 2, 2, 1, 1)),
        dict(depths=(1,) * 4),
        (64, 96),
    ),
    'efficientvit_l1': (
        'efficientvit_l1',
        dict(depths=(1,) * 5, widths=(8, 16, 32, 64, 128), head_widths=(32, 40)),
        dict(depths=(1,) * 4, embed_dims=(16, 32, 64, 128), num_heads=(1, 1, 2, 4)),
        (64, 96),
    ),
    'swiftformer_xs': (
        'swiftformer_xs',
        dict(layers=(2, 1, 1, 1)),
        dict(depths=(2, 1, 1, 1)),
        (64, 96),
    ),
    'mobilevitv2_050': ('mobilevitv2_050', {}, {}, (64, 128)),
}


def draw(model):
    """Random weights none of which is near 0 or 1 by their initialisation."""
    for name, value in model.state_dict().items():
        if value.dim() > 1 and not any(word in name for word in ('pos_embed', 'token', 'table')):
            value.normal_(std=value[0].numel() ** -0.5)
        elif name.endswith('running_var'):
            value.uniform_(0.5, 1.5)
        elif value.is_floating_point():
            value.normal_(1.0 if name.endswith('weight') else 0.0, 0.3)
    return model.eval()


class Classifier(torch.nn.Module):
    """A backbone that makes a class token, or one with a neck behind its last map; and a linear."""

    def __init__(self, backbone, neck=None):
        super().__init__()
        self.backbone = backbone
        self.neck = MODELS.build(neck) if neck else torch.nn.Identity()
        channels = backbone.class_tokens * backbone.embed_dims[-1]
        channels = neck['out_channels'] if neck else channels
        self.head = torch.nn.ModuleDict(dict(fc=torch.nn.Linear(channels, 7)))

    def forward(self, images):
        return self.head['fc'](self.neck(self.backbone(images))[0])


def published_backbone(name, **options):
    return MODELS.build(dict(PUBLISHED[name].backbone, **options)).eval()


def assert_close(own, released, tolerance=TOLERANCE):
    scale = tolerance * released.abs().max().item()
    torch.testing.assert_close(own, released, rtol=0, atol=scale)


@pytest.mark.sampled(3, 3)
@pytest.mark.parametrize('name', SMALL)
def test_weights_of_timm_give_its_maps_and_logits(name, tmp_path):
    timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    from mmlaplace.timm import TimmClassifier

    released, options, arch, size = SMALL[name]
    any_size = ('pvt_v2', 'efficientvit', 'mobilevit')  # which have no size of their own
    if not name.startswith(any_size):
        options = dict(options, img_size=size)
    model = draw(timm.create_model(released, num_classes=7, **options))
    backbone = dict(PUBLISHED[name].backbone, img_size=size)
    cls = MODELS.get(backbone.pop('type'))
    backbone['arch'] = dict(cls.arch_zoo[backbone['arch']], **arch)
    # A file as a training script writes it: the averaged weights, with DDP's prefix, beside others.
    # Names are in the order of safetensors.
    state = {f'module.{key}': value for key, value in sorted(model.state_dict().items())}
    where = 'ema' if name == 'deit_tiny' else 'model_ema'
    torch.save({where: state, 'epoch': 299}, tmp_path / 'released.pth')
    output_of(
        TOOL,
        tmp_path / 'released.pth',
        '--out',
        tmp_path / 'own.safetensors',
        '--image-size',
        *size,
        *(['--model', name] if name == 'mobilevitv2_050' else []),
    )
    if backbone.pop('out_type', None) is None and 'with_dist_token' not in backbone:
        own = TimmClassifier(cls, num_classes=7, **backbone).eval()
    else:
        own = Classifier(cls(out_type='cls_token', **backbone)).eval()
    if neck := PUBLISHED[name].neck:
        backbone.update(attn_cfg=dict(eps=1e-5))  # in timm alone
        if name == 'efficientvit_l1':
            neck = dict(neck, in_channels=128, hidden_channels=32, out_channels=40)
        own = Classifier(cls(**backbone), neck).eval()
    load_weights(own, tmp_path / 'own.safetensors', min_matched=1)
    raw = cls(out_norms=False, **backbone).eval()
    load_weights(raw, tmp_path / 'own.safetensors')
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        assert_close(own(images), model(images))
        maps = raw(images)
        released = model.forward_intermediates(images, len(maps), intermediates_only=True)
        for own, other in zip(maps, released):
            assert_close(own, other)


@pytest.mark.parametrize(
    ('name', 'released'),
    [
        ('deit3_base', 'deit3_base_patch16_224'),
        ('clip_base', 'vit_base_patch16_clip_224'),
        ('clip_quickgelu_base', 'vit_base_patch16_clip_quickgelu_224'),
        ('siglip_base', 'vit_base_patch16_siglip_224'),
        ('siglip_base', 'vit_base_patch16_siglip_gap_224'),
        ('siglip2_base_patch32', 'vit_base_patch32_siglip_256'),
        ('siglip2_so400m', 'vit_so400m_patch16_siglip_256'),
        ('dinov3_small', 'vit_small_patch16_dinov3'),
        ('dinov3_small_qkvb', 'vit_small_patch16_dinov3_qkvb'),
        ('dinov3_small_plus', 'vit_small_plus_patch16_dinov3'),
        ('eva02_tiny', 'eva02_tiny_patch14_224'),
        ('eva02_base', 'eva02_base_patch14_224'),
    ],
)
def test_towers_of_timm_give_their_maps_at_any_size(name, released, tmp_path):
    timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    patch = PUBLISHED[name].backbone.get('patch_size', 16)
    small = dict(embed_dim=48, num_heads=3, depth=2, img_size=4 * patch, dynamic_img_size=True)
    eva02 = name.startswith('eva02')  # whose last norm is of the mean of the map
    ratio = 8 / 3 if eva02 else 4
    model = draw(timm.create_model(released, mlp_ratio=ratio, **small))
    torch.save(model.state_dict(), tmp_path / 'released.pth')
    arch = dict(embed_dims=(48,), num_heads=(3,), depths=(2,), ffn_ratios=(ratio,))
    options = dict(arch=arch, img_size=4 * patch, out_norms=False if eva02 else None)
    own = published_backbone(name, **options)
    assert not load_weights(own, tmp_path / 'released.pth').missing
    prefix = model.num_prefix_tokens
    of_class = published_backbone(name, **options, out_type='cls_token') if prefix else None
    if of_class is not None:
        load_weights(of_class, tmp_path / 'released.pth')
    for size in ((4 * patch, 4 * patch), (6 * patch, 10 * patch)):
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            (found,), tokens = own(images), model.forward_features(images)
            if of_class is not None:
                assert_close(of_class(images)[0], tokens[:, 0])
        assert_close(found.flatten(2).mT, tokens[:, prefix:])


def test_the_authors_names_of_dinov3_are_timms_and_a_masked_bias_of_keys_is_zero():
    timm = pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    small = dict(embed_dim=48, num_heads=3, depth=2)
    model = draw(timm.create_model('vit_small_plus_patch16_dinov3_qkvb', **small))
    names = {
        'reg_token': 'storage_tokens',
        'gamma_1': 'ls1.gamma',
        'gamma_2': 'ls2.gamma',
        'mlp.fc1_g': 'mlp.w1',
        'mlp.fc1_x': 'mlp.w2',
        'mlp.fc2': 'mlp.w3',
    }
    state = {'mask_token': torch.zeros(1, 48), 'rope_embed.periods': torch.ones(4)}
    for name, value in model.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        if name.endswith('attn.q_bias'):
            keys = torch.full_like(value, 7.0)  # which the mask leaves out
            bias = torch.cat([value, keys, model.state_dict()[name.replace('q_bias', 'v_bias')]])
            state[name.replace('q_bias', 'qkv.bias')] = bias
            state[name.replace('q_bias', 'qkv.bias_mask')] = torch.ones_like(bias)
        elif not name.endswith('attn.v_bias'):
            state[name] = value
    arch = dict(embed_dims=(48,), num_heads=(3,), depths=(2,), ffn_ratios=(4,))
    own, same = (published_backbone('dinov3_small_plus_qkvb', arch=arch) for _ in range(2))
    own.load_state_dict(_own_names(state))
    same.load_state_dict(_own_names(model.state_dict()))
    for name, value in same.state_dict().items():
        assert torch.equal(own.state_dict()[name], value), name


def _own_names(state):
    return recognise(state).convert(state, prefix='').weights


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('vit_small_patch16_dinov3', dict(type='DINOv3', arch='small', img_size=256)),
        (
            'vit_small_plus_patch16_dinov3_qkvb.lvd1689m',
            dict(type='DINOv3', arch='small', img_size=256, swiglu=True, qkv_bias=True),
        ),
        ('vit_small_patch14_dinov2', dict(type='DINOv2', arch='small', img_size=518)),
        (
            'vit_base_patch16_siglip_512.v2_webli',
            dict(
                type='ViT',
                arch='base',
                img_size=512,
                smooth_positions=True,
                with_cls_token=False,
            ),
        ),
    ],
)
def test_a_name_of_timm_gives_the_backbone_that_its_weights_fit(name, expected):
    pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    assert backbone_config(f'timm://{name}') == expected
    pretrained = backbone_config(f'timm://{name}', pretrained=True, frozen_stages=1)
    init_cfg = dict(type='Pretrained', checkpoint=f'timm://{name}')
    assert pretrained == dict(expected, init_cfg=init_cfg, frozen_stages=1)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('vit_small_patch16_dinov4', "no model 'vit_small_patch16_dinov4'; similar .*_dinov3, "),
        ('vit_small_patch16_dinov3.nope', 'Invalid pretrained tag .nope.* timm.list_pretrained'),
        ('resnet18', 'no backbone here has its layers; those of ViT, .*python -m mmlaplace list'),
        ('vit_small_patch16_rope_ape_224', 'no backbone here has its layers'),
    ],
)
def test_a_name_of_timm_without_a_backbone_here_is_refused(name, message):
    pytest.importorskip('timm', reason='no timm: pip install "mmlaplace[timm]"')
    with pytest.raises(ValueError, match=message):
        backbone_config(f'timm://{name}')


def test_released_weights_on_a_page_of_timm_are_loaded_by_timm():
    address = 'timm://vit_small_patch16_dinov3.lvd1689m'
    assert released_place('mmlaplace://dinov3-small') == address
    assert PUBLISHED['dinov3_small'].licence == 'DINOv3 License'


@pytest.mark.sampled(16, 16)
@pytest.mark.parametrize('name', manifests())
def test_every_released_checkpoint_converts_whole(name):
    for content in manifests()[name].values():
        with torch.device('meta'):
            released = {key: torch.empty(shape) for key, shape in content['shapes'].items()}
        own, models = convert(released, model=None)
        assert name in models
        assert convert(released, name)[1] == [name]
        said = {row[0]: set(row[1].split(' and ')) for row in own.report}
        assert said.keys() == released.keys()
        assert set().union(*said.values()) - {'dropped'} == own.weights.keys()
        counted = sum(v.numel() for k, v in own.weights.items() if 'running_' not in k)
        assert counted == pytest.approx(content['parameters'], rel=1e-3)


def test_the_rows_of_released_classifiers_are_of_the_model_that_they_name():
    addresses = [model.weights for model in PUBLISHED.values() if model.weights]
    assert len(addresses) == len(set(addresses))
    for name, model in PUBLISHED.items():
        arch = model.backbone['arch']
        if isinstance(arch, str) and model.backbone['type'] != 'XCiTBackbone':  # such as t12
            assert f'_{arch.replace("-", "_")}' in name, name


@pytest.fixture(scope='module')
def b0(tmp_path_factory):
    """Random weights by the names of the authors or of timm."""
    path = tmp_path_factory.mktemp('b0') / 'b0.pth'
    weights = {key: torch.randn(shape) for key, shape in shapes_of('pvt_v2_b0').items()}
    torch.save(dict(model=weights), path)
    return path


def test_positions_that_may_be_of_two_aspects_are_refused_until_the_file_says_which(tmp_path):
    weights = {key: torch.randn(shape) for key, shape in shapes_of('deit_tiny').items()}
    weights['pos_embed'] = torch.randn(1, 1 + 144, 192)  # 12 x 12, or 24 x 6
    torch.save(dict(model=weights), tmp_path / 'released.pth')
    model = published_backbone('deit_tiny', img_size=(384, 96))
    message = r'map of 12 x 12 if its images were square, and of 24 x 6 .* --image-size'
    assert_refused(model, tmp_path / 'released.pth', message)
    load_weights(published_backbone('deit_tiny', img_size=192), tmp_path / 'released.pth')
    own = convert(weights, 'deit_tiny', (384, 96))[0].weights
    torch.save(dict(state_dict=own), tmp_path / 'own.pth')
    load_weights(model, tmp_path / 'own.pth')
    places = model.stages[0]['position'].map.flatten(2).transpose(1, 2)
    assert torch.equal(places, weights['pos_embed'][:, 1:])


def test_a_module_of_another_model_is_told_which_one_fits(b0):
    message = f'does not fit: .*; it fits {re.escape(describe("pvt_v2_b0"))}'
    for other in (published_backbone('pvt_v2_b1'), MODELS.build(dict(type='PVTv2', arch='b0'))):
        assert_refused(other, b0, message)


def test_a_module_with_the_authors_names_is_loaded_as_it_is(b0):
    module = torch.nn.ModuleDict({'norm1': torch.nn.LayerNorm(32)})
    load_weights(module, b0, prefix='')
    assert torch.equal(module['norm1'].weight, torch.load(b0)['model']['norm1.weight'])


@pytest.mark.parametrize(
    ('change', 'model', 'message'),
    [
        ({}, 'pvt_v2_b1', r'does not fit pvt_v2_b1.* as \(32, 3, 7, 7\) .*; it fits pvt_v2_b0'),
        ({}, 'pvt_v2_c0', "no published model 'pvt_v2_c0'; similar names are pvt_v2_"),
        ({'block1.0.gate': torch.ones(1)}, None, r"have no place in our model: \['block1.0.gate'"),
        ({'norm4.bias': None}, 'pvt_v2_b0', r'missing 1 \(stages.3.norm.bias\), unexpected 0'),
        ({'norm1.weight': None}, None, 'those of no published model.*--list'),
        ({'norm4.bias': None}, None, 'has the size of no published model; give a file by --out'),
    ],
)
def test_what_cannot_be_converted_is_named(b0, change, model, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights = {k: v for k, v in {**torch.load(b0)['model'], **change}.items() if v is not None}
    torch.save(weights, 'released.pth')
    options = ['--model', model] if model else []
    assert re.search(message, refusal_of(TOOL, 'released.pth', *options))
    assert [path.name for path in tmp_path.iterdir()] == ['released.pth']


def test_without_out_the_file_has_the_name_of_the_model(b0, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output_of(TOOL, b0)
    load_weights(build_b0 := published_backbone('pvt_v2_b0'), 'pvt_v2_b0.pth')
    assert build_b0.stages[0]['norm'].weight.std() > 0.1
    assert 'is there already; --force' in refusal_of(TOOL, b0)


def test_a_classifier_with_a_neck_loads_into_backbones_and_detectors(tmp_path):
    backbone, path = RAVLT(ARCH), tmp_path / 'classifier.pth'
    neck, head = ConvPoolingNeck(32, 40), torch.nn.ModuleDict(dict(fc=torch.nn.Linear(40, 10)))
    parts = dict(backbone=RAVLT(ARCH, out_norms=False, out_indices=-1), neck=neck, head=head)
    torch.save(torch.nn.ModuleDict(parts).state_dict(), path)
    detector = torch.nn.ModuleDict(dict(backbone=backbone, neck=head, rpn_head=head))
    missing = set(load_weights(detector, path).missing)
    norms = {f'norm{i}.{name}' for i in range(4) for name in ('weight', 'bias')}
    assert missing >= {f'backbone.{name}' for name in norms} and len(missing) == 8 + 4
    assert set(load_weights(backbone, path).missing) == norms
    other = torch.nn.ModuleDict(dict(parts, neck=torch.nn.Identity()))
    assert_refused(other, path, 'in layers of this ModuleDict that have no such tensor')


@pytest.mark.parametrize('patch_size', [16, 8])
def test_maps_of_four_blocks_of_xcit_get_the_strides_of_a_pyramid(patch_size, tmp_path):
    arch = dict(embed_dims=(16,), depths=(4,), num_heads=(2,), ffn_ratios=(2,))
    options = dict(type='XCiTBackbone', arch=arch, patch_size=patch_size)
    classifier = MODELS.build(dict(options, out_type='cls_token'))
    torch.save(classifier.state_dict(), tmp_path / 'xcit.pth')
    pyramid = MODELS.build(dict(options, pyramid_blocks=range(4)))
    load_weights(pyramid, tmp_path / 'xcit.pth')  # without class attention
    maps = pyramid(torch.randn(1, 3, 64, 96))
    assert [x.shape[1:] for x in maps] == [(16, 64 // s, 96 // s) for s in (4, 8, 16, 32)]
    for wrong, message in (
        (dict(pyramid_blocks=(0, 1, 3)), r'the last of them 3, .* got \('),
        (dict(pyramid_blocks=(1, 0, 2, 3)), r'the last of them 3, .* got \('),
        (dict(pyramid_blocks=range(4), out_norms=True), 'out_norms=True'),
        (dict(patch_size=4), r'patch_size must be one of \(16, 8\), got 4'),
    ):
        with pytest.raises(ValueError, match=message):
            MODELS.build(dict(options, **wrong))
