"""Choices of papers that no formula shows: biases, and attentions without rows."""

import pytest
from conftest import doubles, make_attention

from mmlaplace.models.layers.token_conv import TokenConv

# Of these the output is no weighted sum of values, so they have no rows to look at.
NO_ROWS = {
    'AdditiveAttention', 'CastlingAttention', 'FaViTAttention', 'LargeKernelAttention', 'LiteMLA',
    'PolarizedAttention', 'SeparableAttention', 'XCAttention',
}  # fmt: skip


@pytest.mark.parametrize('name', sorted(NO_ROWS))
def test_attentions_without_rows_say_so(name):
    assert not make_attention(name).mixes_tokens


def test_sana_has_no_bias_of_queries_and_keys_have_none_along_tokens():
    assert make_attention('SANAAttention').qkv.bias is None
    assert TokenConv(2, 3).bias is None


def test_heads_of_one_channel_have_a_random_feature():
    attention = make_attention('PerformerAttention', embed_dims=2)
    assert attention(doubles(1, 16, 2), (4, 4)).isfinite().all()
