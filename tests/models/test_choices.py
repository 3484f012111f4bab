"""Choices of papers that no formula shows: biases, depths, and what an attention is said to do."""

import pytest
import torch
from mmengine.registry import MODELS

from mmlaplace.models import ViT
from mmlaplace.models.layers.token_conv import TokenConv

# Of these the output is no weighted sum of values, so they have no rows to look at.
NO_ROWS = {
    'AdditiveAttention', 'CastlingAttention', 'FaViTAttention', 'LargeKernelAttention', 'LiteMLA',
    'PolarizedAttention', 'SeparableAttention', 'XCAttention',
}  # fmt: skip


def build(name: str, dims: int = 32, heads: int = 2, **options):
    cfg = dict(type=name, embed_dims=dims, num_heads=heads, input_resolution=(8, 8))
    return MODELS.build(dict(cfg, **options))


@pytest.mark.parametrize('name', sorted(NO_ROWS))
def test_attentions_without_rows_say_so(name):
    assert not build(name).mixes_tokens


def test_sana_has_no_bias_of_queries_and_keys_have_none_along_tokens():
    assert build('SANAAttention').qkv.bias is None
    assert TokenConv(2, 3).bias is None


def test_vit_base_has_the_parameters_that_are_published():
    backbone = ViT(arch='base', img_size=224, patch_size=16).to('meta')
    # 86.6 M with a head of 1,000 classes (DeiT, Table 1: 86 M), 85.8 M without.
    assert sum(p.numel() for p in backbone.parameters()) == pytest.approx(85.8e6, rel=1e-3)


def test_heads_of_one_channel_have_a_random_feature():
    attention = build('PerformerAttention', dims=2)
    assert attention(torch.randn(1, 64, 2), (8, 8)).isfinite().all()


@pytest.mark.parametrize('rate', [-0.1, 1, 'much'])
def test_a_rate_of_stochastic_depth_is_a_share(rate):
    with pytest.raises(ValueError, match=str(rate)):
        ViT(drop_path_rate=rate)
