from typing import Any, Optional, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from .base import Dims, QKVAttention


@MODELS.register_module()
class EfficientLinearAttention(QKVAttention):
    r"""Efficient attention: a softmax of queries over channels, and one of keys over tokens.

    .. math::
        Y = \mathrm{softmax}_{channels}(Q) \, \big( \mathrm{softmax}_{tokens}(K)^T \, V \big)

    Weights of a query sum to 1, so there is no normaliser. Time is :math:`O(N d^2)` per head. It
    has no parameters of its own. There is no temperature: the scale of queries and keys sets the
    sharpness. Both softmaxes are fp32 under any autocast, as weights are about 1 / N.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        residual: Whether the input is added to the output, as in the authors' module. A block with
            its own residual connection then adds the input twice. Default: False.
        key_dims: Channels of the queries, and of the keys, over all heads. Default: C.
        value_dims: Channels of the values over all heads. Default: C.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Raises:
        ValueError: If ``num_heads`` does not divide the channels of keys or values.

    Cost: NCd to mix; 4C² weights.

    Published: FLatten's table: 70.2, 81.0.

    Source: Efficient Attention (arXiv 1812.01243).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import EfficientLinearAttention
        >>> attention = EfficientLinearAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    no_prefix_tokens = ''
    tested_options = (dict(rope=True), dict(sr_ratio=2), dict(key_dims=60, lepe_kernel=3))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        residual: bool = False,
        key_dims: Optional[int] = None,
        value_dims: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        key_dims = embed_dims if key_dims is None else key_dims
        value_dims = embed_dims if value_dims is None else value_dims
        dims = Dims(key_dims, value_dims, embed_dims)
        super().__init__(embed_dims, num_heads, input_resolution, dims=dims, **kwargs)
        self.residual = residual

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        return efficient_attention(q, k, v)

    def forward(
        self,
        x: Tensor,
        hw_shape: Tuple[int, int],
        mask: Optional[Tensor] = None,
        source: Optional[Tensor] = None,
    ) -> Tensor:
        out = super().forward(x, hw_shape, mask, source)
        return out + x if self.residual else out


def efficient_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The formula above, for queries, keys and values ``(B, heads, N or n, d)``."""
    with no_autocast(v.device):
        query, key, value = upcast(q, k, v)
        summed = key.softmax(-2).transpose(-2, -1) @ value  # (B, heads, d, d of values)
        return (query.softmax(-1) @ summed).to(v.dtype)
