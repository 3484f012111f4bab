"""Every attention as an ONNX graph of standard operators, in ONNX Runtime."""

import pytest
import torch
from conftest import OnMap, fast_with, quiet_init, registered
from mmengine.registry import MODELS

from mmlaplace.models import BaseAttention

pytest.importorskip('onnx')
pytest.importorskip('onnxruntime')
from onnx_files import assert_alike, operators, session, to_onnx

ATTENTIONS = registered(BaseAttention)
# A sign, bucket or choice that rounding turns changes outputs, so these are compared in fp64.
OF_SIGNS = ('EcoFormerAttention', 'MiTAAttention', 'ReformerAttention')
HW, OTHERS = (9, 10), [(1, 9, 10), (3, 11, 13), (2, 7, 16)]


def build(name):
    sizes = dict(embed_dims=32, num_heads=2, input_resolution=(8, 8))
    module = OnMap(MODELS.build(dict(type=name, **sizes)))
    for parameter in module.parameters():  # no branch is zero
        parameter.data += 0.02 * torch.randn_like(parameter)
    return module.eval()


@torch.no_grad()
def check(name, sizes=OTHERS):
    module, channels = build(name), 32
    dtype = torch.float64 if name in OF_SIGNS else torch.float32
    module.to(dtype)
    axes = {0: 'batch', 2: 'height', 3: 'width'}
    content = to_onnx(module, (torch.randn(2, channels, *HW, dtype=dtype),), dynamic=[axes])
    assert operators(content) == {''}
    run = session(content)
    for batch, *size in sizes:
        x = torch.randn(batch, channels, *size, dtype=dtype)
        expected = module(x)
        assert expected.isfinite().all()
        assert_alike(run(x), expected)


@pytest.mark.parametrize('name', fast_with(ATTENTIONS, 'LaplacianAttention'))
def test_an_attention_leaves_for_any_batch_and_size(name):
    check(name)


@pytest.mark.slow
def test_sides_shorter_than_the_landmarks_have_fewer():
    check('LaplacianAttention', sizes=[(1, 4, 5), (2, 20, 3)])


@pytest.mark.slow
@pytest.mark.parametrize('name', [
    'LaplacianFormer',
    *(pytest.param(name, marks=pytest.mark.thorough) for name in ('SOFT', 'PolaFormerSwin')),
])  # fmt: skip
def test_a_backbone_leaves_for_any_batch(name):
    backbone = MODELS.build(dict(type=name, arch='micro', img_size=64, out_indices=-1)).eval()
    quiet_init(backbone)
    content = to_onnx(backbone, (torch.randn(2, 3, 64, 64),), dynamic=[{0: 'b'}])
    assert operators(content) == {''}
    run = session(content)
    with torch.no_grad():
        for batch in (1, 3):
            x = torch.randn(batch, 3, 64, 64)
            assert_alike(run(x), backbone(x)[0])
