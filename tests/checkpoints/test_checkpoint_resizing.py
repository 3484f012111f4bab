"""Weights of another resolution load on every way; others do not."""

from functools import partial

import pytest
import torch
import torch.nn as nn
from conftest import quiet_init
from mmengine.registry import MODELS
from mmengine.runner.checkpoint import load_checkpoint
from saved_weights import assert_refused, save
from small_backbone import ARCH, build

from mmlaplace.engine import load_weights

# Its matrix of gates has the resolution of training.
SIZED = dict(type='PolaAttention', gate_form='matrix', key_positions=False)


WAYS = {
    'load_weights': load_weights,
    'load_state_dict': lambda m, file: m.load_state_dict(torch.load(file)['state_dict']),
    'load_from': partial(load_checkpoint, logger='silent'),
}


def load(way, file, build=build, **kwargs):
    if way == 'Pretrained':
        module = build(init_cfg=dict(type=way, checkpoint=file), **kwargs)
        quiet_init(module)
        return module
    module = nn.ModuleDict(dict(backbone=build(**kwargs)))
    WAYS[way](module, file)
    return module['backbone']


each_way = pytest.mark.parametrize('way', [*WAYS, 'Pretrained'])


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
@each_way
def test_weights_are_resized_on_every_way_in_the_precision_of_the_module(tmp_path, way, dtype):
    trained = build(attn_cfg=SIZED).to(dtype)
    file = save(tmp_path / 'a.pth', trained.state_dict(), 'backbone.')
    module = load(way, file, attn_cfg=SIZED, img_size=(64, 96))
    gates, given = (m.stages[0]['blocks'][0].attn.gate_matrix for m in (module, trained))
    resized = nn.functional.interpolate(given.float(), (16, 24), mode='bilinear')
    torch.testing.assert_close(gates, resized)
    torch.testing.assert_close(module.norm3.weight, trained.norm3.weight.float())


def test_resized_names_are_reported(tmp_path):
    file = save(tmp_path / 'a.pth', build(attn_cfg=SIZED).state_dict())
    report = load_weights(build(attn_cfg=SIZED, img_size=64), file)
    assert report.resized == [n for n in report.matched if n.endswith('attn.gate_matrix')]
    assert len(report.resized) == 5


def swin(**options):
    return MODELS.build(dict(dict(type='Swin', arch='micro', out_indices=-1), **options))


@each_way
def test_tables_of_other_windows_are_refused_or_resized_by_choice_on_every_way(tmp_path, way):
    trained = swin(window_size=14)
    file = save(tmp_path / 'a.pth', trained.state_dict(), 'backbone.')
    with pytest.raises(ValueError, match=r'windows of 14, 14, 14, 7 .* of 7; .* window_size=14'):
        load(way, file, build=swin)
    module = load(way, file, build=swin, resize_windows=True)
    table, own = (m.stages[0]['blocks'][0].attn.attn.relative_bias for m in (trained, module))
    resized = nn.functional.interpolate(table, (13, 13), mode='bicubic')
    torch.testing.assert_close(own, resized)


@pytest.mark.parametrize(('theirs', 'ours'), [(64, 224), (224, 64), (96, 128), (70, 91)])
def test_windows_on_small_maps_are_those_of_the_image_size(tmp_path, theirs, ours):
    trained, module = swin(img_size=theirs).eval(), swin(img_size=ours).eval()
    load_weights(module, save(tmp_path / 'a.pth', trained.state_dict()))
    images = torch.randn(1, 3, max(theirs, ours), max(theirs, ours))
    if ours >= theirs:  # a table that was made smaller is not that of large maps again
        torch.testing.assert_close(module(images)[0], trained(images)[0])


def in_windows(side):
    """Another attention in windows, which has a position for each place of a window."""
    inner = dict(type='PolaAttention', key_positions=True)
    return dict(attn_cfg=dict(window_size=side, attn_cfg=inner))


@pytest.mark.parametrize(
    ('theirs', 'ours', 'message'),
    [
        (dict(), dict(window_size=12, img_size=384), 'windows of 7 tokens .* 12; .*window_size=7'),
        # Swin-S3's, of which no map is small.
        (
            dict(attn_cfg=dict(per_stage=dict(window_size=(7, 7, 14, 7)))),
            {},
            r'attn_cfg=dict\(per_stage=dict\(window_size=\(7, 7, 14, 7\)\)\)',
        ),
        (in_windows(4), in_windows(7), 'window_size=4'),
    ],
)
def test_the_windows_of_the_checkpoint_are_named(tmp_path, theirs, ours, message):
    file = save(tmp_path / 'a.pth', swin(**theirs).state_dict())
    assert_refused(swin(**ours), file, message)


@pytest.mark.parametrize(
    'options',
    [
        dict(type='LaplacianFormer', arch=ARCH),
        dict(type='SOFT', arch=ARCH),
        dict(type='RAVLT', arch=ARCH),
        dict(type='XCiTBackbone', arch='n12'),
    ],
    ids=lambda options: options['type'],
)
@pytest.mark.slow
def test_the_first_convolution_is_adapted_to_grey_images_by_choice(tmp_path, options):
    trained = MODELS.build(options).eval()
    file = save(tmp_path / 'a.pth', trained.state_dict(), 'backbone.')
    images = torch.rand(1, 1, 64, 64)
    module = MODELS.build(dict(options, in_channels=1)).eval()
    message = 'images of 3 channels, .*in_channels=1; build it with in_channels=3'
    assert_refused(module, file, message)
    load_weights(module, file, adapt_input_conv=True)
    first, own = (m.stages[0]['patch_embed'] for m in (trained, module))
    tokens, _ = first(images.expand(-1, 3, -1, -1))  # a picture of three equal channels
    # Sums of fp32 in another order, of up to six convolutions and norms.
    torch.testing.assert_close(own(images)[0], tokens, rtol=1e-4, atol=1e-5)


def test_channels_are_adapted_as_in_timm(tmp_path):
    models = pytest.importorskip('timm.models', reason='no timm: pip install "mmlaplace[timm]"')
    trained = swin()
    file = save(tmp_path / 'a.pth', trained.state_dict())
    weight = trained.stages[0]['patch_embed'].projection.weight
    for channels in (1, 2, 4, 7):
        module = swin(in_channels=channels)
        load_weights(module, file, adapt_input_conv=True)
        own = module.stages[0]['patch_embed'].projection.weight
        torch.testing.assert_close(own, models.adapt_input_conv(channels, weight.detach()))
