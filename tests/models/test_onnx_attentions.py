"""Every attention as an ONNX graph of standard operators, in ONNX Runtime."""

import pytest
import torch
from conftest import OnMap, quiet_init, registered
from mmengine.registry import MODELS

from mmlaplace.models import BaseAttention

pytest.importorskip('onnx')
pytest.importorskip('onnxruntime')
from onnx_files import assert_alike, operators, session, to_onnx

ATTENTIONS = registered(BaseAttention)
# A sign, bucket or choice that rounding turns changes outputs, so these are compared in fp64.
OF_SIGNS = ('EcoFormerAttention', 'MiTAAttention', 'ReformerAttention')


@torch.no_grad()
def check(module, channels, hw_shape, axes, sizes, dtype=torch.float32):
    """A graph of standard operators gives the outputs for any batch and size of the axes."""
    module = module.to(dtype).eval()
    example = torch.randn(2, channels, *hw_shape, dtype=dtype)
    content = to_onnx(module, (example,), dynamic=[axes])
    assert operators(content) == {''}
    run = session(content)
    for batch, *size in sizes:
        x = torch.randn(batch, channels, *size, dtype=dtype)
        expected = module(x)
        expected = expected[0] if isinstance(expected, tuple) else expected
        assert expected.isfinite().all()
        assert_alike(run(x), expected)


@pytest.mark.sampled(3, 3)
@pytest.mark.parametrize('name', ATTENTIONS)
def test_an_attention_leaves_for_any_batch_and_size(name):
    sizes = dict(embed_dims=32, num_heads=2, input_resolution=(8, 8))
    module = OnMap(MODELS.build(dict(type=name, **sizes)))
    for parameter in module.parameters():  # no branch is zero
        parameter.data += 0.02 * torch.randn_like(parameter)
    others = [(1, 9, 10), (3, 11, 13), (2, 7, 16)]
    if name == 'LaplacianAttention':  # sides that are shorter than the landmarks have fewer
        others += [(1, 4, 5), (2, 20, 3)]
    dtype = torch.float64 if name in OF_SIGNS else torch.float32
    check(module, 32, (9, 10), {0: 'batch', 2: 'height', 3: 'width'}, others, dtype)


class BehindTokens(torch.nn.Module):
    """An attention of a map behind learned tokens, which gives all of them."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        prefix = attention.num_prefix_tokens
        self.first = torch.nn.Parameter(torch.randn(1, prefix, attention.embed_dims))

    def forward(self, x):
        tokens = torch.cat(
            [self.first.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], dim=1
        )
        return self.attention(tokens, x.shape[2:])


# Landmarks of the map, and rotary positions inside of an op; positions of keys; those of features.
@pytest.mark.parametrize('name', ['LaplacianAttention', 'PolaAttention', 'MALAAttention'])
def test_class_tokens_leave_with_the_map(name):
    sizes = dict(embed_dims=32, num_heads=2, input_resolution=(8, 8))
    module = BehindTokens(MODELS.build(dict(type=name, num_prefix_tokens=3, **sizes)))
    for parameter in module.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    others = [(1, 9, 10), (3, 11, 13), (2, 4, 5)]
    check(module, 32, (9, 10), {0: 'batch', 2: 'height', 3: 'width'}, others)


@pytest.mark.sampled(3, 3)
@pytest.mark.slow
@pytest.mark.parametrize('name', ['LaplacianFormer', 'SOFT', 'PolaFormerSwin'])
def test_a_backbone_leaves_for_any_batch(name):
    backbone = MODELS.build(dict(type=name, arch='micro', img_size=64, out_indices=-1))
    quiet_init(backbone)
    check(backbone, 3, (64, 64), {0: 'batch'}, [(1, 64, 64), (3, 64, 64)])
