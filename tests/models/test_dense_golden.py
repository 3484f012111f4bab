"""Detectors, segmentors and their backbones give the outputs of the authors' code.

``tests/data/golden/dense/README.md`` tells how the files were made. Weights and the image are made
up here as they were there.
"""

import json
import zlib

import numpy as np
import pytest
import torch
from conftest import ROOT, toolbox_model
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope
from test_golden import assert_close, sampled
from torch.nn import Conv2d

from mmlaplace.checkpoints import load_weights
from mmlaplace.models import (
    EfficientViTNeck,
    EfficientViTSegNeck,
    PyramidPoolingNeck,
    SSDLiteNeck,
    WeightedCrossEntropy,
)
from mmlaplace.models.pyramid import arch

GOLDEN = ROOT / 'tests/data/golden/dense'
# Tensors that are computed, or of no use. The files have them, too.
UNUSED = ('index', 'angle', 'rotations', 'num_batches_tracked')
# fp32: sums of thousands of products in another order differ by 1e-6 to 1e-5 of the largest value.
TOLERANCE = 1e-4
# So that no box of RetinaNet is without area, which mmdet 3 leaves out, and the cascade finds some.
GAINS = {'bbox_head.retina_reg.weight': 0.25}
GAINS.update({f'roi_head.bbox_head.{i}.fc_cls.weight': 8 for i in range(3)})
# So that the scores of SSD differ.
GAINS.update({f'ssd_heads.{i}.loc_cls_layer.pw_conv.block.conv.weight': 4 for i in range(5)})
SIDES = (150, 210)  # of the image, which 32 does not divide


def drawn(name, shape):
    """A tensor of the authors that depends on nothing but its name and shape."""
    if name.endswith(UNUSED):
        return torch.zeros(shape)
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith('running_var'):
        value = 0.5 + np.abs(noise)
    elif noise.size == max(shape):  # of a norm, a layer scale or a bias
        value = 0.1 * noise + (not name.endswith(('bias', 'running_mean')))
    else:
        value = (
            GAINS.get(name, 1) * noise / (1 if 'pos_embed' in name else np.prod(shape[1:]) ** 0.5)
        )
    return torch.from_numpy(value).float()


def weights_of(names):
    """The authors' tensors by name, of the names and shapes in a file."""
    return {name: drawn(name, tuple(shape)) for name, shape in json.loads(str(names))}


def image(height, width):
    """Stripes, discs and noise, all by integers: ``(H, W, 3)``."""
    y, x = np.mgrid[:height, :width]
    chance = np.random.default_rng(0)
    stripes = (3 * x + 2 * y, x * y // 9, 5 * y + x * x // 40)
    pixels = np.stack([stripe % 256 for stripe in stripes], axis=-1)
    for _ in range(12):
        row, column = chance.integers(0, height), chance.integers(0, width)
        radius = chance.integers(6, 30)
        disc = (y - row) ** 2 + (x - column) ** 2 < radius * radius
        pixels[disc] = chance.integers(0, 256, 3)
    return (pixels + chance.integers(-9, 10, pixels.shape)).clip(0, 255).astype(np.uint8)


# The number in a classifier, and the side of the square in a detector.
AGENTS = {9: 9, 16: 12, 49: 14}
AGENT_SWIN = [
    dict(
        window_size=10**6,
        even_windows=True,
        attn_cfg=dict(
            type='AgentAttention', qkv='qkv', num_landmarks=count, agent_shape=(side, side)
        ),
    )
    for count, side in AGENTS.items()
] + [None]
AGENT_SHAPES = ((12, 12), (16, 16), (28, 28), (28, 28))
AGENT_PVT = dict(
    type='AgentAttention', per_stage=dict(num_landmarks=(9, 16, 49, 49), agent_shape=AGENT_SHAPES)
)
XCIT = dict(type='XCiTBackbone', pyramid_blocks=range(4), arch=arch((24,), (4,), (4,)))
DIMS, DEPTHS, HEADS = (8, 16, 32, 64), (1, 1, 2, 1), (1, 2, 2, 4)
PVT = dict(type='PVT', arch=arch((8, 16, 20, 32), DEPTHS, (1, 2, 5, 8), (8, 8, 4, 4)))
SWIN, ODD = dict(type='Swin', arch=arch(DIMS, (2, 1, 2, 2), HEADS)), (3.5,) * 4
ROUND_DOWN, PAD = dict(ceil_mode=False), dict(pad_small_maps=True)
# A backbone, the option that its dense configs have, and the relative error in fp64. The authors
# compute rotations and waves in fp32.
MAPS = {
    'swin': (SWIN, PAD, 1e-12),
    'agent_swin': (
        dict(SWIN, arch=arch(DIMS, (1, 1, 2, 2), HEADS), attn_cfg=AGENT_SWIN),
        PAD,
        1e-12,
    ),
    'agent_pvt': (dict(PVT, attn_cfg=AGENT_PVT), ROUND_DOWN, 1e-12),
    'cswin': (dict(type='CSWin', arch=arch(DIMS, DEPTHS, (2, 4, 8, 16))), ROUND_DOWN, 1e-12),
    'xcit_p16': (dict(XCIT, patch_size=16), ROUND_DOWN, 1e-6),
    'xcit_p8': (dict(XCIT, patch_size=8), ROUND_DOWN, 1e-6),
    'mlla': (dict(type='MLLA', arch=arch(DIMS, DEPTHS, HEADS)), {}, 1e-6),
    'ravlt': (dict(type='RAVLT', arch=arch((8, 16, 24, 32), DEPTHS, (1, 2, 3, 4), ODD)), {}, 1e-6),
    'pvt': (PVT, {}, 1e-12),
    'pvt_v2': (dict(PVT, type='PVTv2', stage_norms=True), {}, 1e-12),
}


def thinned(values):
    """Each eighth of the sampled values, and the sums of all."""
    few = sampled(values)
    return torch.cat([few[:-8:8], few[-8:]])


@pytest.mark.parametrize('name', MAPS)
def test_maps_are_those_of_the_authors_detectors(name):
    golden = np.load(GOLDEN / 'maps.npz')
    config, option, tolerance = MAPS[name]
    backbone = MODELS.build(config | option).double().eval()
    backbone.load_state_dict(weights_of(golden[f'{name}/names']))  # strict, by the authors' names
    images = np.random.default_rng(1).standard_normal((1, 3, *golden[f'{name}/size']))
    with torch.no_grad():
        maps = backbone(torch.from_numpy(images))
    assert [list(out.shape) for out in maps] == json.loads(str(golden[f'{name}/shapes']))
    for i, out in enumerate(maps):
        ours, theirs = thinned(out), torch.from_numpy(golden[f'{name}/{i}'])
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def slim(part):
    """Give all layers of necks and heads 32 channels, in place."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part):
        if str(key).endswith('channels'):
            part[key] = [32] * len(value) if isinstance(value, list) else 32
        elif isinstance(value, (dict, list)):
            slim(value)


WIDE = (16, 32, 64, 128)
MOBILE = 'segmentation/mobilevitv2/mobilevitv2-050_'
MOBILEVITV2 = arch((64, 128, 192, 256), (1, 2, 4, 3), (1, 2, 3, 4), (2,) * 4)
# A config, and the narrower backbone.
MODELS_OF = {
    'ravlt_mask_rcnn': (
        'detection/ravlt/mask-rcnn_ravlt-tiny_fpn_1x_coco',
        arch((16, 32, 48, 64), DEPTHS, (1, 2, 3, 4), ODD),
    ),
    'mlla_mask_rcnn': (
        'detection/mlla/mask-rcnn_mlla-tiny_fpn_ms-1x_coco',
        arch(WIDE, DEPTHS, (1, 2, 4, 8)),
    ),
    'agent_swin_cascade': (
        'detection/agent/cascade-mask-rcnn_agent-swin-tiny_fpn_ms-1x_coco',
        arch(WIDE, (1, 1, 2, 2), (1, 2, 4, 8)),
    ),
    'pvt_retinanet': (
        'detection/pvt/retinanet_pvt-tiny_fpn_1x_coco',
        arch((16, 32, 40, 64), DEPTHS, (1, 2, 5, 8), (8, 8, 4, 4)),
    ),
    'swin_upernet': (
        'segmentation/swin/swin-tiny_upernet_8xb2-160k_ade20k-512x512',
        arch(WIDE, (2, 1, 2, 2), (1, 2, 4, 8)),
    ),
    'xcit_fpn': (
        'segmentation/xcit/xcit-t12-p16_fpn_8xb2-80k_ade20k-512x512',
        arch((32,), (4,), (4,)),
    ),
    'efficientvit_b': (
        'segmentation/efficientvit/efficientvit-b1_seghead_8xb2-160k_ade20k-512x512',
        arch((16, 32, 48, 64), (1, 2, 1, 1), (1, 2, 3, 4)),
    ),
    'efficientvit_l': (
        'segmentation/efficientvit/efficientvit-l1_seghead_8xb2-160k_ade20k-512x512',
        arch((16, 32, 48, 64), DEPTHS, (1, 1, 1, 2), (4, 4, 4, 6)),
    ),
    'mobilevitv2_deeplabv3': (MOBILE + 'deeplabv3_4xb4-152k_ade20k-512x512', MOBILEVITV2),
    'mobilevitv2_deeplabv3_voc': (MOBILE + 'deeplabv3_4xb32-4k_voc12aug-512x512', MOBILEVITV2),
    'mobilevitv2_pspnet': (MOBILE + 'pspnet_4xb32-4k_voc12aug-512x512', MOBILEVITV2),
    'mobilevitv2_ssd': (
        'detection/mobilevitv2/ssdlite_mobilevitv2-050_4xb32-200e_coco',
        MOBILEVITV2,
    ),
}


def outputs(name, path):
    """What our model of a config gives for the image, with the weights of the authors' file."""
    golden = np.load(GOLDEN / f'{name}.npz')
    config, size = MODELS_OF[name]
    cfg = Config.fromfile(ROOT / f'configs/{config}.py')
    cfg.model.backbone.update(arch=size, init_cfg=None)
    for part in [part for part in cfg.model if part.endswith(('neck', 'head'))]:
        slim(cfg.model[part])
    dims = list(size['embed_dims'])
    if name == 'xcit_fpn':
        cfg.model.backbone.pyramid_blocks, dims = range(4), dims * 4
    first = cfg.model.get('neck', cfg.model.get('decode_head'))
    first.in_channels = dims[-len(cfg.model.backbone.get('out_indices', dims)) :]
    if isinstance(first.get('in_index'), int):
        first.in_channels = dims[first.in_index]
    if first.type == 'PyramidPoolingNeck':
        first.in_channels, cfg.model.decode_head.in_channels = dims[-1], 2 * dims[-1]
    if 'auxiliary_head' in cfg.model:
        cfg.model.auxiliary_head.in_channels = dims[2]
    task = config.split('/')[0]
    apis = pytest.importorskip(dict(detection='mmdet.apis', segmentation='mmseg.apis')[task])
    model = revert_sync_batchnorm(toolbox_model(cfg)).eval()
    weights = weights_of(golden['names'])
    # As mmcv 1 writes it.
    torch.save(dict(meta=dict(epoch=12, CLASSES=('a', 'b')), state_dict=weights), path)
    load_weights(model, path)
    steps = [step for step in cfg.test_pipeline if step.type != 'LoadAnnotations']
    if name != 'mobilevitv2_ssd':  # whose anchors are for one size
        steps[1].scale = SIDES[::-1]  # no other step of the authors' pipelines changes pixels
    cfg.test_dataloader.dataset.pipeline = cfg.test_pipeline = steps
    model.cfg = cfg
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        if task == 'detection':
            return golden, apis.inference_detector(model, image(*SIDES)).pred_instances
        return golden, apis.inference_model(model, image(*SIDES))


def check(golden, found):
    """Compare detections or logits with the authors'."""
    if 'logits' in golden:
        assert_close(found.seg_logits.data, torch.from_numpy(golden['logits']), TOLERANCE)
        labels = found.pred_sem_seg.data.flatten()[::7].numpy()
        assert (labels != golden['labels']).mean() < 1e-3  # where two classes are as likely
        return
    # Left, top, right, bottom, score. Scores that differ by a rounding error have no order.
    boxes, labels = torch.from_numpy(golden['boxes']), torch.from_numpy(golden['labels'])
    ours = in_units(found.bboxes, found.scores, found.labels)
    apart = torch.cdist(in_units(boxes[:, :4], boxes[:, 4], labels), ours, p=torch.inf)
    errors, order = apart.min(dim=1)
    assert errors.max() <= TOLERANCE
    assert sorted(order.tolist()) == list(range(len(ours)))
    if 'masks' in golden:
        masks = np.packbits(found.masks[order].numpy())
        assert np.unpackbits(masks ^ golden['masks']).mean() < 1e-4  # at edges, by rounding


def in_units(boxes, scores, labels):
    """Rows that differ by 1 where a box, a score or a class is another."""
    return torch.cat([boxes / max(SIDES), scores[:, None], labels[:, None].float()], dim=1)


@pytest.mark.parametrize('name', MODELS_OF)
def test_converted_models_give_the_authors_outputs(name, tmp_path):
    check(*outputs(name, tmp_path / 'theirs.pth'))


NECKS = [dict(type='EfficientViTSegNeck', channels=8, num_blocks=1), dict(type='SSDLiteNeck')]
ROUNDED = [dict(type='PVT', arch='micro'), dict(XCIT, arch='micro')]


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        *(
            (
                lambda cfg=cfg: MODELS.build(dict(cfg, in_channels=[8, 8]))(
                    [torch.zeros(1, 8, 4, 4)]
                ),
                r'has 2 maps, got 1; set out_indices .*, \(2, 3\) for',
            )
            for cfg in NECKS
        ),
        *(
            (
                lambda cfg=cfg: MODELS.build(dict(cfg, **ROUND_DOWN))(torch.zeros(1, 3, 31, 64)),
                r'at least 32 x 32 pixels, got shape \(1, 3, 31, 64\)',
            )
            for cfg in ROUNDED
        ),
        (lambda: MODELS.build(dict(type='MobileViTv2', output_stride=4)), '8, 16 or 32, got 4'),
        (lambda: SSDLiteNeck((32, 64), (16, 16)), r'more levels than the 2 maps .* got \(16, 16\)'),
        (lambda: PyramidPoolingNeck(3), 'at least the number of pool_sizes, 4, got 3'),
        (
            lambda: pytest.importorskip('mmlaplace.models.ssd').SSDLiteHead(stacked_convs=3),
            'have no effect in SSDLiteHead',
        ),
    ],
    ids=['seg neck', 'ssd neck', 'PVT', 'XCiT', 'stride', 'levels', 'pools', 'head'],
)
def test_backbones_necks_and_heads_say_what_does_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_blocks_of_a_segmentation_neck_have_the_width_that_is_asked_for():
    for ratio in (2, 6):
        neck = EfficientViTSegNeck((8, 16), 8, num_blocks=1, ffn_ratio=ratio)
        widths = [part.out_channels for part in neck.blocks.modules() if isinstance(part, Conv2d)]
        assert max(widths) == 8 * ratio


def test_both_norms_of_a_neck_have_the_eps_that_is_asked_for():
    """It decides whether small features keep their size."""
    small = 1e-3 * torch.randn(4, 32)
    deviations = [
        EfficientViTNeck(8, 16, 32, eps=eps).linear_norm(small).std() for eps in (1e-7, 1e-5)
    ]
    assert deviations[0] > 0.9 and deviations[1] < 0.4  # 1e-6 is the variance
    assert EfficientViTNeck(8, 16, 32, eps=1e-7).norm.eps == 1e-7


def test_the_last_level_of_ssd_is_positive():
    neck = SSDLiteNeck((32, 64), (16, 16, 16, 8)).eval()
    *others, last = neck([torch.randn(2, 32, 20, 20), torch.randn(2, 64, 10, 10)])
    assert last.min() == 0 < last.max()
    assert all(level.min() < 0 for level in others)  # which end in a norm


LOGITS, LABELS = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))


def test_the_loss_of_the_mini_segmentors_is_mmsegs_with_class_weights():
    losses = pytest.importorskip('mmseg.models.losses')
    options = dict(class_weight=[0.1, 1.0, 2.0], loss_weight=0.4)
    theirs = losses.CrossEntropyLoss(**options)(LOGITS, LABELS)
    torch.testing.assert_close(WeightedCrossEntropy(**options)(LOGITS, LABELS), theirs)


def test_pixels_without_a_label_do_not_count_in_the_loss():
    loss, some = WeightedCrossEntropy([0.1, 1.0, 2.0]), LABELS.clone()
    some[1] = 255
    logits = LOGITS.clone().requires_grad_()
    torch.testing.assert_close(loss(logits, some), loss(LOGITS[:1], LABELS[:1]))
    none = loss(logits, torch.full_like(LABELS, 255))
    none.backward()
    assert none == 0 and not logits.grad.any()
    with pytest.raises(ValueError, match='no weights of pixels'):
        loss(LOGITS, LABELS, weight=torch.ones(2, 4, 5))
