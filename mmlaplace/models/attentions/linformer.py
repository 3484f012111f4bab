from typing import Any, Optional, Tuple

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from ..layers import resize_map, softmax_attention
from ..layers.checks import check_counts
from .base import Dims, Projected, QKVAttention


@MODELS.register_module()
class LinformerAttention(QKVAttention):
    r"""Linformer: softmax attention on m learned sums of the keys and of the values.

    Per head, with E and F (N, m) that all heads share:

    .. math:: Y = \mathrm{softmax}\big( Q \, (E^T K)^T / \sqrt{d} \big) \, F^T V

    Time is :math:`O(N m d)` per head. E and F are 2 N m parameters. Their weights belong to
    positions, so they are stored as m maps of ``input_resolution``. For other sizes the maps are
    resized bilinearly and multiplied by the ratio of the areas, which keeps the scale of the sums.
    They start uniform in :math:`\pm 1/\sqrt{N}`. The authors' start in :math:`\pm 1/\sqrt{m}`, with
    which logits grow with the size of the map.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        num_landmarks: Number m. The authors have 256. Default: 49.
        share_kv: Whether F is E and the values are the keys. There is then no linear for values.
            Default: False.
        resize: Whether E and F are resized. If not, a map of fewer tokens takes the first rows, as
            in the authors' code, and a map of more tokens raises. Default: True.
        one_kv_head: Whether all heads share the keys and values of one head. The linear is then
            smaller. Everything after it costs as much as with keys for each head. Default: False.
        head_dims: Channels d of a head. Default: C / heads.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``. The authors' queries, keys
            and values have no biases: ``qkv_bias=False``. There is no ``sr_ratio``, as keys are
            reduced already.

    Raises:
        ValueError: For ``num_landmarks`` below 1, ``share_kv`` or ``one_kv_head`` with another form
            of ``qkv`` or a gate, and with ``resize=False`` for a map of more tokens than
            ``input_resolution``.

    Cost: NCm to mix; 4C² + 2Nm weights.

    Published: SOFT's table, by spatial reduction: 78.2.

    Source: Linformer (arXiv 2006.04768).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LinformerAttention
        >>> attention = LinformerAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    fixed_options = ('sr_ratio',)
    no_multihead = no_prefix_tokens = 'its sums have a weight for each place of a map'
    tested_options = (
        dict(share_kv=True, num_landmarks=5),
        dict(rope=True),
        dict(one_kv_head=True, rope=True, lepe_kernel=3),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        num_landmarks: int = 49,
        share_kv: bool = False,
        resize: bool = True,
        one_kv_head: bool = False,
        head_dims: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        inner = None if head_dims is None else num_heads * head_dims
        dims = None if inner is None else Dims(inner, inner, embed_dims)
        super().__init__(embed_dims, num_heads, input_resolution, dims=dims, **kwargs)
        check_counts(num_landmarks=num_landmarks)
        for name, value in (('share_kv', share_kv), ('one_kv_head', one_kv_head)):
            if value and (self.frame.qkv != 'qkv' or self.frame.gate):
                raise ValueError(
                    f'{name}=True has its own linear layers, got qkv={self.frame.qkv!r} and '
                    f"gate={self.frame.gate}; set qkv='qkv' and gate=False, or {name}=False"
                )
        self.share_kv = share_kv
        self.one_kv_head = one_kv_head
        self.resize = resize
        height, width = self.input_resolution
        bound = (height * width) ** -0.5

        def sums() -> nn.Parameter:
            table = torch.empty(1, num_landmarks, height, width)
            return nn.Parameter(nn.init.uniform_(table, -bound, bound))

        self.key_sums = sums()
        self.register_parameter('value_sums', None if share_kv else sums())
        if share_kv or one_kv_head:
            of_keys = self.head_dims if one_kv_head else self.dims.key
            self.parts = [self.dims.key, of_keys] if share_kv else [self.dims.key, of_keys, of_keys]
            self.qkv = nn.Linear(embed_dims, sum(self.parts), self.frame.qkv_bias)

    def project(self, x: Tensor, hw_shape: Tuple[int, int]) -> Projected:
        if not self.share_kv and not self.one_kv_head:
            return super().project(x, hw_shape)
        q, *parts = self.qkv(x).split(self.parts, dim=-1)
        if self.one_kv_head:
            parts = [part.repeat(1, 1, self.num_heads) for part in parts]
        k, v = parts[0], parts[-1]
        if self.key_positions is not None:
            positions = resize_map(self.key_positions, hw_shape).flatten(2).transpose(-2, -1)
            k = k + positions.to(k.dtype)
        return Projected(q, k, v, None)

    def _sums(self, table: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """E or F for a map, ``(m, N)``."""
        height, width = hw_shape
        stored = table.shape[2] * table.shape[3]
        if self.resize:
            return resize_map(table, hw_shape)[0].flatten(1) * (stored / (height * width))
        if height * width > stored:
            raise ValueError(
                f'LinformerAttention(resize=False) is for {stored} tokens at most '
                f'(input_resolution {self.input_resolution}), got {height * width} of a map '
                f'{tuple(hw_shape)}; set resize=True'
            )
        return table[0].flatten(1)[:, : height * width]

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        key_sums = self._sums(self.key_sums, hw_shape).to(k.dtype)
        value_sums = key_sums
        if self.value_sums is not None:
            value_sums = self._sums(self.value_sums, hw_shape).to(v.dtype)
        return softmax_attention(q, key_sums @ k, value_sums @ v)

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """E, F or the key positions of a checkpoint, resized to the map of this module."""
        if name not in ('key_sums', 'value_sums') or value.dim() != 4:
            return super().resize_weight(name, value)
        size = self.input_resolution
        ratio = value.shape[2] * value.shape[3] / (size[0] * size[1])
        return resize_map(value, size) * ratio
