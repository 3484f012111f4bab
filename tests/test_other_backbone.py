"""A detector or segmentor on another backbone: its maps, channels, pyramid and optimizer."""

import pytest
import torch
from mmengine.config import Config

from mmlaplace.config_files import config_file
from mmlaplace.engine.first_checks import check_maps
from mmlaplace.model_zoo import build_model
from mmlaplace.other_backbone import on_backbone

VIT = dict(type='ViT', arch=dict(embed_dims=(32,), depths=(1,), num_heads=(1,), ffn_ratios=(1,)))
PYRAMID = dict(
    type='PVTv2',
    arch=dict(embed_dims=(8, 16, 24, 32), depths=(1,) * 4, num_heads=(1,) * 4, ffn_ratios=(1,) * 4),
)
RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'


def read(name):
    pytest.importorskip(name.partition('::')[0])
    return Config.fromfile(config_file(name))


def necks(model):
    found = model.get('neck') or []
    return [neck.type for neck in (found if isinstance(found, list) else [found])]


# Heads, what makes the maps of a plain ViT, and where the channels of its maps go.
HEADS = {
    RETINANET: (['SimpleFeaturePyramid'], ('neck', 'in_channels'), 32),
    'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py': (
        ['ResizedPyramid', 'ChannelMapper'],
        ('neck', 1, 'in_channels'),
        [32] * 3,
    ),
    'mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512.py': (
        ['SimpleFeaturePyramid'],
        ('auxiliary_head', 'in_channels'),
        256,
    ),
    'mmlaplace::heads/segnext_1xb16-160k_ade20k-512x512.py': (
        ['SimpleFeaturePyramid'],
        ('decode_head', 'in_channels'),
        [256] * 3,
    ),
    'mmlaplace::heads/plain/linear_4xb4-80k_ade20k-512x512.py': (
        [],
        ('decode_head', 'channels'),
        32,
    ),
    'mmlaplace::heads/plain/dino-4scale_resized-pyramid_8xb2-12e_coco.py': (
        ['ResizedPyramid', 'ChannelMapper'],
        ('neck', 1, 'in_channels'),
        [32] * 3,
    ),
    'mmlaplace::heads/plain/mask-rcnn_simple-pyramid_1x_coco.py': (
        ['SimpleFeaturePyramid'],
        ('neck', 'patch_size'),
        16,
    ),
}


@pytest.mark.parametrize('name', HEADS)
def test_a_head_reads_the_map_of_a_plain_vit(name):
    pytest.importorskip('mmseg')
    kinds, path, value = HEADS[name]
    given = read(name)
    before = given.to_dict()
    cfg = on_backbone(given, VIT)
    assert given.to_dict() == before
    check_maps(cfg)
    with torch.device('meta'):
        build_model(cfg)
    assert necks(cfg.model) == kinds
    found = cfg.model
    for part in path:
        found = found[part]
    assert found == value and cfg.model.backbone.arch == VIT['arch']
    assert cfg.custom_imports['imports'].count('mmlaplace') == 1


def test_a_pyramid_backbone_gives_the_strides_that_a_head_reads():
    cfg = on_backbone(read('mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py'), PYRAMID)
    assert cfg.model.backbone.out_indices == (1, 2, 3)
    assert cfg.model.neck.in_channels == [16, 24, 32] and necks(cfg.model) == ['ChannelMapper']
    check_maps(cfg)


def test_what_was_for_the_former_backbone_goes_and_what_is_for_training_stays():
    given = read(RETINANET)
    given.load_from = 'resnet.pth'
    cfg = on_backbone(given, VIT, dict(mean=[1.0] * 3, std=[2.0] * 3, bgr_to_rgb=True))
    assert cfg.load_from is None and cfg.optim_wrapper.optimizer == dict(
        type='AdamW', lr=1e-4, weight_decay=0.05
    )
    assert cfg.model.data_preprocessor.mean == [1.0] * 3
    assert cfg.model.data_preprocessor.pad_size_divisor == 32
    assert cfg.model.neck.strides == (8, 16, 32) and cfg.model.neck.num_outs == 5
    assert 'frozen_stages' not in cfg.model.backbone  # of the ResNet
    linear = on_backbone(read('mmlaplace::heads/plain/linear_4xb4-80k_ade20k-512x512.py'), VIT)
    assert linear.model.backbone.frozen_stages == 1 and 'backbone' not in linear
    segmentor = on_backbone(read('mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512.py'), VIT)
    assert segmentor.model.pretrained is None
    assert segmentor.model.data_preprocessor.test_cfg == dict(size_divisor=32)
    assert segmentor.param_scheduler[-1].eta_min == 0  # it was AdamW's rate


@pytest.mark.parametrize(
    ('name', 'backbone', 'said'),
    [
        (
            'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py',
            VIT,
            'at strides 4, 8, 8, 8, which no pyramid makes of the map of ViT',
        ),
        (
            'mmseg::pspnet/pspnet_r50-d8_4xb2-40k_cityscapes-512x1024.py',
            PYRAMID,
            'at strides 4, 8, 8, 8, and PVTv2 has maps at strides 4, 8, 16, 32; take a head',
        ),
        (
            'mmlaplace::heads/plain/mask-rcnn_simple-pyramid_1x_coco.py',
            PYRAMID,
            'a pyramid of one map at strides 14, and PVTv2 has maps at strides 4, 8, 16, 32',
        ),
        (
            'mmdet::faster_rcnn/faster-rcnn_r50-caffe-c4_ms-1x_coco.py',
            VIT,
            r'\[1024\] channels of ResNet and has a shared_head.* cannot read the \[32\] of ViT',
        ),
        ('mmdet::ssd/ssd300_coco.py', VIT, r'the neck SSDNeck cannot take the \[32, 32\]'),
        (
            'mmdet::dcn/faster-rcnn_r50-dconv-c3-c5_fpn_1x_coco.py',
            VIT,
            'are not known, as ResNet does not run without weights .*; take a head',
        ),
        (RETINANET, dict(type='ResNet', depth=18), "one of mmlaplace, got 'ResNet'"),
        (
            'mmpretrain::resnet/resnet18_8xb32_in1k.py',
            VIT,
            "default_scope='mmpretrain' with the model 'ImageClassifier'; take one of",
        ),
    ],
)
def test_a_head_that_no_maps_fit_is_refused_with_the_strides(name, backbone, said):
    cfg = read(name)
    with pytest.raises(ValueError, match=said):
        on_backbone(cfg, backbone)


def test_a_config_is_found_by_the_name_of_a_toolbox_and_others_are_refused():
    assert config_file('any/path.py') == 'any/path.py'
    assert read(RETINANET).model.type == 'RetinaNet'
    with pytest.raises(ValueError, match="one of mmlaplace::, mmpretrain::.*, got 'other::a/b.py'"):
        config_file('other::a/b.py')
    with pytest.raises(
        FileNotFoundError, match=f"no config .*fpn_3x.*similar ones are.*'{RETINANET}"
    ):
        config_file(RETINANET.replace('1x', '3x'))
