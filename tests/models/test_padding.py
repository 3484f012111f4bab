"""With mask_padding, an image of a padded batch gets the maps that it gets alone."""

import gc
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, quiet_init, registered
from mmengine.logging import MessageHub
from mmengine.registry import MODELS, DefaultScope
from processes import run
from test_backbones import build
from torch.distributed import fsdp
from torch.utils._python_dispatch import TorchDispatchMode

from mmlaplace.models import BaseAttention, PyramidBackbone, set_valid_shapes, valid_parts
from mmlaplace.models.pyramid.options import takes
from mmlaplace.models.valid_parts import _KNOWN, valid_shapes

BACKBONES = registered(PyramidBackbone)
COMMON = ('LaplacianFormer', 'LaplacianFormerRows', 'PolaFormerPVT', 'SOFTPlusPlus', 'XCiTBackbone')
# Sums over other numbers of images and of tokens at once, in fp64.
EXACT = dict(atol=1e-9, rtol=1e-9)
SHAPES = ((64, 64), (64, 96), (32, 64), (64, 64))
WHOLE = (64, 128)
thorough = pytest.mark.thorough


def usual(name):
    return name if name in COMMON else pytest.param(name, marks=thorough)


def double(name, **options):
    return build(name, **dict(dict(mask_padding=True), **options)).double().eval()


def padded(shapes=SHAPES, whole=WHOLE):
    """Images, and a batch of them whose padding is no zeros, so that it shows if it is read."""
    images = [torch.randn(1, 3, *shape, dtype=torch.float64) for shape in shapes]
    batch = torch.full((len(images), 3, *whole), 3.0, dtype=torch.float64)
    for row, image in zip(batch, images):
        row[:, : image.shape[2], : image.shape[3]] = image[0]
    return images, batch


def check_maps_are_those_alone(backbone, shapes=SHAPES, whole=WHOLE):
    images, batch = padded(shapes, whole)
    sizes = [x.shape for x in backbone(batch)]
    set_valid_shapes(batch, shapes)
    together = backbone(batch)
    assert [x.shape for x in together] == sizes
    for row, image in enumerate(images):
        for maps, alone in zip(together, backbone(image)):
            valid = maps[row : row + 1, :, : alone.shape[2], : alone.shape[3]]
            torch.testing.assert_close(valid, alone, **EXACT)
            rest = F.pad(alone, (0, maps.shape[3] - alone.shape[3]))
            rest = F.pad(rest, (0, 0, 0, maps.shape[2] - alone.shape[2]))
            torch.testing.assert_close(maps[row : row + 1], rest, **EXACT)  # zeros elsewhere


@torch.no_grad()
@pytest.mark.parametrize('name', [usual(name) for name in BACKBONES])
def test_an_image_gets_the_maps_that_it_gets_alone(name):
    check_maps_are_those_alone(double(name))


@torch.no_grad()
@pytest.mark.parametrize('name', [usual(name) for name in BACKBONES])
def test_sides_may_be_any(name):
    check_maps_are_those_alone(double(name), ((75, 61), (41, 107), (75, 61)), (75, 107))


@torch.no_grad()
@pytest.mark.parametrize(
    'name',
    [
        name if name == 'LinearAttention' else pytest.param(name, marks=thorough)
        for name in registered(BaseAttention)
    ],
)
def test_every_attention_leaves_padding_out(name):
    options = dict(num_landmarks=4) if takes(MODELS.get(name), 'num_landmarks') else {}
    host = 'LaplacianFormer' if takes(MODELS.get(name), 'num_heads') else 'Swin'
    check_maps_are_those_alone(double(host, attn_cfg=dict(type=name, **options)))


@torch.no_grad()
def test_maps_of_a_pyramid_of_one_stage_leave_padding_out():
    stem = dict(embed_dims=(32,), depths=(4,), num_heads=(2,), ffn_ratios=(2,))
    for options in ({}, dict(ceil_mode=False), dict(patch_size=8)):
        backbone = double('XCiTBackbone', arch=stem, pyramid_blocks=(0, 1, 2, 3), **options)
        check_maps_are_those_alone(backbone)
        check_maps_are_those_alone(backbone, ((75, 61), (41, 107)), (108, 107))


@torch.no_grad()
@pytest.mark.parametrize('name', ['Softmax', 'Linear', 'Laplacian', 'Pola'])
def test_class_tokens_leave_padding_out(name):
    attn_cfg = dict(type=f'{name}Attention')
    backbone = double('ViT', with_cls_token=True, out_type='cls_token', attn_cfg=attn_cfg)
    images, batch = padded()
    batch = batch.to(memory_format=torch.channels_last)
    set_valid_shapes(batch, SHAPES)
    (tokens,) = backbone(batch)
    torch.testing.assert_close(tokens, torch.cat([backbone(x)[0] for x in images]), **EXACT)


@torch.no_grad()
def test_maps_are_as_large_as_the_batch_where_no_image_fills_it():
    backbone = double('LaplacianFormer', out_indices=(0, 3))
    _, batch = padded(((32, 32), (32, 64)), (64, 96))
    set_valid_shapes(batch, [(32, 32), (32, 64)])
    assert [x.shape[2:] for x in backbone(batch)] == [(16, 24), (2, 3)]


@torch.no_grad()
def test_sides_that_are_rounded_down_stay_so():
    backbone = double('PVT', ceil_mode=False)
    check_maps_are_those_alone(backbone, ((66, 64), (64, 66)), (67, 110))
    assert backbone.map_sides(67) == (16, 8, 4, 2)


@torch.no_grad()
def test_maps_keep_the_memory_format():
    backbone = double('LaplacianFormer', out_indices=0)
    _, batch = padded()
    last = batch.to(memory_format=torch.channels_last)
    for images in (batch, last):
        set_valid_shapes(images, SHAPES)
    (plain,), (maps,) = backbone(batch), backbone(last)
    assert plain.is_contiguous() and maps.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(maps, plain, **EXACT)


@pytest.mark.parametrize('with_cp', [False, True])
def test_gradients_are_the_sums_of_those_alone(with_cp):
    backbone = double('LaplacianFormer', with_cp=with_cp).train()
    images, batch = padded()
    weights = [torch.randn_like(x) for x in backbone(images[1])]

    def loss(outs):
        sums = []
        for x, w in zip(outs, weights):
            sums.append((x[..., : w.shape[3]] * w[:, :, : x.shape[2], : x.shape[3]]).sum())
        return sum(sums)

    sum(loss(backbone(image)) for image in images).backward()
    alone = {name: p.grad.clone() for name, p in backbone.named_parameters()}
    backbone.zero_grad()
    batch.requires_grad_()
    set_valid_shapes(batch, SHAPES)
    loss(backbone(batch)).backward()
    for name, parameter in backbone.named_parameters():
        torch.testing.assert_close(parameter.grad, alone[name], atol=1e-8, rtol=1e-8)
    for row, (height, width) in zip(batch.grad, SHAPES):
        assert row[:, :height, :width].all()
        row[:, :height, :width] = 0
        assert not row.any()


class Operators(TorchDispatchMode):
    """Lists the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def operators(backbone, images):
    with torch.no_grad(), Operators() as seen:
        outs = backbone(images)
    return seen.names, outs


def test_a_forward_for_other_processes_changes_no_map_of_halves():
    images, shapes = torch.rand(2, 3, 64, 128), [(64, 128)] * 2

    def forward(x):  # whose sum is beyond fp16
        return (x.half() * 0 + 100,)

    (out,) = valid_parts.forward_of_parts(forward, images, shapes, [(64, 128)], forwards=2)
    assert (out == 100).all()


def test_a_batch_without_padding_costs_nothing():
    backbone = double('LaplacianFormer')
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    backbone.mask_padding = False
    operators(backbone, images)  # the first forward of a process fills tables, too
    expected, outs = operators(backbone, images)
    backbone.mask_padding = True
    for known in (None, [(64, 64), (64, 64)]):
        if known:
            set_valid_shapes(images, known)
        found, masked = operators(backbone, images)
        assert found == expected
        assert all(map(torch.equal, masked, outs))


@torch.no_grad()
def test_without_mask_padding_the_padding_is_a_part_of_the_image():
    backbone = double('LaplacianFormer', mask_padding=False)
    images, batch = padded()
    before = backbone(batch)
    set_valid_shapes(batch, SHAPES)
    assert all(map(torch.equal, backbone(batch), before))
    assert MODELS.get('LaplacianFormer')('micro').mask_padding is False


def test_in_training_a_batch_without_known_parts_is_refused():
    backbone = double('LaplacianFormer').train()
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r'valid part.*\(2, 3, 64, 64\).*ValidPartsDetData'):
        backbone(images)
    set_valid_shapes(images, [(64, 64), (32, 64)])
    with pytest.raises(RuntimeError, match='valid part'):
        backbone(images + 0)  # another tensor
    backbone(images)
    backbone(images[:1].clone())  # one image has no padding of a batch


def test_batchnorms_that_train_are_refused():
    backbone = double('SOFTPlusPlus').train()
    _, batch = padded()
    set_valid_shapes(batch, SHAPES)
    with pytest.raises(RuntimeError, match=r'BatchNorm2d stages\.0\S+ would.*norm_eval=True'):
        backbone(batch)
    backbone = double('SOFTPlusPlus', norm_eval=True).train()
    mean = backbone.stages[0].patch_embed.layers[1].running_mean
    before = mean.clone()
    backbone(batch)
    assert torch.equal(mean, before)


@pytest.mark.parametrize(
    'shapes', [[(64, 64)], [(64, 64), (0, 64)], [(64, 64), (64, 129)], [(65, 1), (64, 64)], []]
)
def test_parts_outside_of_the_images_are_refused(shapes):
    images = torch.zeros(2, 3, 64, 128)
    with pytest.raises(ValueError, match=r'from \(1, 1\) to \(64, 128\) for each of the 2 images'):
        set_valid_shapes(images, shapes)
    assert valid_shapes(images) is None


def test_a_batch_that_is_gone_is_forgotten():
    gc.collect()
    before = len(_KNOWN)
    images = torch.zeros(1, 3, 8, 8)
    set_valid_shapes(images, [(8, 4)])
    assert len(_KNOWN) == before + 1 and valid_shapes(images) == [(8, 4)]
    del images
    gc.collect()
    assert len(_KNOWN) == before


@thorough
@torch.no_grad()
def test_exported_graphs_take_images_as_whole():
    images = torch.randn(2, 3, 64, 64)
    set_valid_shapes(images, [(64, 64), (32, 64)])
    backbone = double('PVT').float()
    plain = double('PVT', mask_padding=False).float()
    plain.load_state_dict(backbone.state_dict())
    for graph in (
        torch.export.export(backbone, (images,)).module(),
        torch.jit.trace(backbone, images, check_trace=False),
        torch.fx.symbolic_trace(backbone),
    ):
        for maps, expected in zip(graph(images), plain(images)):
            torch.testing.assert_close(maps, expected)


@thorough
@torch.no_grad()
def test_a_compiled_backbone_leaves_padding_out():
    backbone = double('PVT')
    _, batch = padded()
    set_valid_shapes(batch, SHAPES)
    for maps, expected in zip(torch.compile(backbone, backend='eager')(batch), backbone(batch)):
        torch.testing.assert_close(maps, expected, **EXACT)


def images_of(shapes):
    return [torch.randint(256, (3, *shape), dtype=torch.uint8) for shape in shapes]


def retina(**options):
    """mmdet's RetinaNet with a small LaplacianFormer."""
    pytest.importorskip('mmdet.models')
    norms = dict(mean=[0, 0, 0], std=[50, 50, 50])
    backbone = dict(type='LaplacianFormer', img_size=64, out_indices=(1, 2, 3), mask_padding=True)
    arch = dict(embed_dims=(8, 16, 16, 32), depths=(1,) * 4, num_heads=(1, 1, 2, 2))
    anchors = dict(type='AnchorGenerator', strides=[8, 16, 32], ratios=[1.0], scales=[4])
    preprocessor = dict(type='ValidPartsDetDataPreprocessor', pad_size_divisor=32, **norms)
    model = dict(
        type='mmdet.RetinaNet',
        data_preprocessor=dict(preprocessor, **options),
        backbone=dict(backbone, arch=dict(arch, ffn_ratios=(2,) * 4)),
        neck=dict(type='mmdet.FPN', in_channels=[16, 16, 32], out_channels=8, num_outs=3),
        bbox_head=dict(
            type='mmdet.RetinaHead',
            num_classes=2,
            in_channels=8,
            feat_channels=8,
            stacked_convs=1,
            anchor_generator=anchors,
            bbox_coder=dict(type='mmdet.DeltaXYWHBBoxCoder'),
        ),
        train_cfg=dict(
            assigner=dict(type='mmdet.MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4),
            sampler=dict(type='mmdet.PseudoSampler'),
            allowed_border=-1,
            pos_weight=-1,
        ),
        test_cfg=dict(nms_pre=10, nms=dict(type='nms', iou_threshold=0.5), max_per_img=5),
    )
    with DefaultScope.overwrite_default_scope('mmdet'):  # another test may have another
        detector = MODELS.build(model)
    quiet_init(detector)
    return detector


def det_batch(shapes):
    from mmdet.structures import DetDataSample
    from mmengine.structures import InstanceData

    samples = []
    for shape in shapes:
        meta = dict(img_shape=shape, ori_shape=shape, scale_factor=(1.0, 1.0))
        sample = DetDataSample(metainfo=meta)
        boxes = torch.tensor([[4.0, 4.0, 30.0, 30.0]])
        sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.tensor([1]))
        samples.append(sample)
    return dict(inputs=images_of(shapes), data_samples=samples)


def test_a_detector_of_mmdet_trains_on_valid_parts_and_tests_as_alone():
    detector = retina()
    data = det_batch(((60, 50), (64, 120)))
    seen = []
    detector.backbone.stages[0].patch_embed.register_forward_pre_hook(
        lambda module, inputs: seen.append(tuple(inputs[0].shape))
    )
    batch = detector.data_preprocessor(data, True)
    assert batch['inputs'].shape == (2, 3, 64, 128)
    losses = detector._run_forward(batch, mode='loss')
    assert sorted(seen) == [(1, 3, 64, 64), (1, 3, 64, 128)]  # as each is padded alone
    assert all(torch.as_tensor(x).isfinite().all() for x in losses['loss_cls'])
    detector.eval()
    with torch.no_grad():
        batch = detector.data_preprocessor(data, False)
        together = detector.backbone(batch['inputs'])
        alone = detector.data_preprocessor(
            dict(inputs=data['inputs'][:1], data_samples=data['data_samples'][:1]), False
        )
        for maps, expected in zip(together, detector.backbone(alone['inputs'])):
            valid = maps[:1, :, :, : expected.shape[3]]
            torch.testing.assert_close(valid, expected, atol=1e-5, rtol=1e-5)  # of fp32


def test_a_batch_that_is_resized_keeps_its_parts():
    resize = dict(type='mmdet.BatchSyncRandomResize', random_size_range=(64, 64), interval=10)
    detector = retina(batch_augments=[resize])
    (augment,) = detector.data_preprocessor.batch_augments
    augment._input_size = (32, 64)
    MessageHub.get_current_instance().update_info('iter', 0)  # which it asks
    batch = detector.data_preprocessor(det_batch(((60, 50), (64, 120))), True)
    assert batch['inputs'].shape == (2, 3, 32, 64)
    assert valid_shapes(batch['inputs']) == [(32, 32), (32, 64)]


def test_the_preprocessor_of_mmseg_knows_the_parts():
    pytest.importorskip('mmseg.models')
    from mmseg.structures import SegDataSample

    shapes = ((40, 64), (64, 64))
    for divisor, expected in ((None, [(40, 64), (64, 64)]), (32, [(64, 64), (64, 64)])):
        preprocess = MODELS.build(
            dict(
                type='ValidPartsSegDataPreProcessor',
                size=(64, 64),
                test_cfg=divisor and dict(size_divisor=divisor),
            )
        )
        data = dict(inputs=images_of(shapes), data_samples=[SegDataSample(), SegDataSample()])
        assert valid_shapes(preprocess(data, training=True)['inputs']) == expected
        data = dict(inputs=images_of([(40, 50)] * 2), data_samples=[SegDataSample()] * 2)
        batch = preprocess(data, training=False)['inputs']
        assert valid_shapes(batch) == [tuple(batch.shape[2:])] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    'way', ['fully_shard', pytest.param('FullyShardedDataParallel', marks=thorough)]
)
def test_processes_with_sharded_layers_wait_for_no_part_of_another(way):
    if not hasattr(fsdp, way):
        pytest.skip(f'this torch has no torch.distributed.fsdp.{way}')
    torchrun = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    script = ROOT / 'tests/models/sharded_parts.py'
    result = run([*torchrun, '--nproc-per-node', 2, script, way])
    for rank in (0, 1):
        assert f'{way} of {rank} is right' in result.stdout, result.stderr
