from importlib.util import find_spec
from typing import Any, NamedTuple, Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.backend import ceil_div
from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import softmax_attention
from ..layers.checks import check_counts
from ..layers.tables import computed_once
from .base import QKVAttention

BACKENDS = ('auto', 'natten', 'reference')


class AxisTiles(NamedTuple):
    """The positions of an axis in tiles. Each tile has a window of all positions that it sees.

    Attributes:
        queries: Places of each tile, ``(tiles, t)``. Tiles may overlap.
        keys: Places of each window, ``(tiles, w)``.
        seen: Whether a query sees a key, ``(tiles, t, w)``.
        slots: For each place, its position in the flat ``queries``, ``(side,)``.
    """

    queries: Tensor
    keys: Tensor
    seen: Tensor
    slots: Tensor


def axis_tiles(side: int, kernel_size: int, dilation: int, device: torch.device) -> AxisTiles:
    """Tiles of k places, with k the ``kernel_size``, and windows of 2 k - 1.

    A place sees the k places of its own residue modulo the dilation that are nearest to it. At an
    edge they are moved inwards, so that each place sees as many. An axis that is too short has a
    smaller dilation, then a smaller k.
    """
    dilation = min(dilation, max(1, side // kernel_size))
    count = min(kernel_size, side // dilation)
    longest = ceil_div(side, dilation)  # places of the first residue
    tiles = ceil_div(longest, count)
    width = min(2 * count - 1, longest)

    residue = torch.arange(dilation, device=device)[:, None, None]
    length = ceil_div(side - residue, dilation)  # places of each residue
    tile = torch.arange(tiles, device=device)[:, None]
    start = (tile * count).minimum(length - count)
    query = start + torch.arange(count, device=device)  # (dilation, tiles, t), in steps
    first = (query - count // 2).clamp(min=0).minimum(length - count)
    key = first[..., :1] + torch.arange(width, device=device)
    near, far = first[..., None], first[..., None] + count
    seen = (key[..., None, :] >= near) & (key[..., None, :] < far)
    key = key.minimum(length - 1)  # a window may be longer than a residue

    place = torch.arange(side, device=device)
    step, own_residue = place // dilation, place % dilation
    own_tile = own_residue * tiles + step // count
    slots = own_tile * count + step - start.flatten()[own_tile]
    queries = query * dilation + residue
    keys = key * dilation + residue
    return AxisTiles(queries.flatten(0, 1), keys.flatten(0, 1), seen.flatten(0, 1), slots)


def tiles_of_map(
    height: int, width: int, kernel_size: int, dilation: int, device: torch.device
) -> Tuple[AxisTiles, AxisTiles, Tensor]:
    """Tiles of rows and of columns, and which keys their queries see, ``(1, tiles, t², w²)``."""
    rows = axis_tiles(height, kernel_size, dilation, device)
    columns = axis_tiles(width, kernel_size, dilation, device)
    seen = rows.seen[:, None, :, None, :, None] & columns.seen[:, None, :, None]
    return rows, columns, seen.flatten(4).flatten(2, 3).flatten(0, 1)[None]


def cut(x: Tensor, hw_shape: Tuple[int, int], rows: Tensor, columns: Tensor) -> Tensor:
    """Tiles of a map: ``(B, heads, N, d)`` to ``(B, heads, tiles, places, d)``."""
    x = x.unflatten(2, hw_shape)
    # One axis after the other: the gradient of a selection is then a sum of long rows.
    x = x.index_select(2, rows.flatten()).index_select(3, columns.flatten())
    x = x.unflatten(3, columns.shape).unflatten(2, rows.shape)
    return x.transpose(3, 4).flatten(4, 5).flatten(2, 3)


@MODELS.register_module()
class NeighborhoodAttention(QKVAttention):
    r"""Neighbourhood attention: softmax over the k x k tokens around each query.

    Per head, with :math:`\rho(i)` the k x k places nearest to i, moved inwards at an edge:

    .. math:: y_i = \sum_{j \in \rho(i)} \mathrm{softmax}_j(q_i \cdot k_j / \sqrt{d})\, v_j

    With a dilation, these places are that many tokens apart. Time is linear, :math:`O(N C k^2)`. A
    query sees k tokens along each side of the map, and all tokens of a side that has no more. The
    softmax is fp32 under any autocast.

    On a GPU, the fused kernels of natten compute it if that package is installed (``pip install
    natten``). Otherwise, tiles of k x k queries attend with a mask to the :math:`(2k - 1)^2` tokens
    around them. This takes :math:`O(N k^2)` memory. The two have the same values. The GPU path has
    not been run.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        kernel_size: Odd side k of the neighbourhood, in tokens. Default: 7.
        dilation: Distance between neighbouring places of the neighbourhood, in tokens. Default: 1.
            Every second block of DiNAT has a dilation of up to the side of the map divided by k.
        backend: ``'auto'`` (default), ``'natten'`` or ``'reference'``.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Raises:
        ValueError: For a ``kernel_size`` that is even or below 3, a ``dilation`` below 1, or an
            unknown backend.
        ImportError: For ``backend='natten'`` without the package.

    Cost: 2k²NC, softmax in k × k places to mix; 4C² weights.

    Published: Mini 81.8, Tiny 83.2, Small 83.7, Base 84.3, with a learned bias.

    Source: NAT (arXiv 2204.07143), DiNAT (arXiv 2209.15001). The learned relative bias of the
    papers is left out, as natten has no kernel with one.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import NeighborhoodAttention
        >>> attention = NeighborhoodAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    fixed_options = ('sr_ratio',)
    no_multihead = no_prefix_tokens = 'its queries see the places around them on a map'
    tested_options = (dict(kernel_size=3, dilation=2, rope=True, lepe_kernel=3),)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        kernel_size: int = 7,
        dilation: int = 1,
        backend: str = 'auto',
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        check_counts(kernel_size=kernel_size, dilation=dilation)
        if kernel_size < 3 or kernel_size % 2 == 0:
            raise ValueError(f'kernel_size must be odd and at least 3, got {kernel_size}')
        if backend not in BACKENDS:
            raise ValueError(f'backend must be one of {BACKENDS}, got {backend!r}')
        if backend == 'natten' and find_spec('natten') is None:
            raise ImportError("backend='natten' needs the package natten: pip install natten")
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.backend = backend
        self.has_natten = backend != 'reference' and find_spec('natten') is not None

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        # natten takes one size and dilation a side, which must fit the map.
        fits = all(side >= self.kernel_size * self.dilation for side in hw_shape)
        if self.has_natten and fits and (q.is_cuda or self.backend == 'natten'):
            return self._by_natten(q, k, v, hw_shape)
        sizes = self.kernel_size, self.dilation
        rows, columns, seen = computed_once(tiles_of_map, *hw_shape, *sizes, like=q)
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query = cut(query, hw_shape, rows.queries, columns.queries)
            key = cut(key, hw_shape, rows.keys, columns.keys)
            value = cut(value, hw_shape, rows.keys, columns.keys)
            # Heads are of one batch, so that tiles stand where PyTorch has heads.
            out = softmax_attention(
                query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), attn_mask=seen
            )
            out = out.unflatten(0, q.shape[:2])
            out = out.unflatten(3, (rows.queries.shape[1], columns.queries.shape[1]))
            out = out.unflatten(2, (rows.queries.shape[0], columns.queries.shape[0]))
            out = out.transpose(3, 4).flatten(4, 5).flatten(2, 3)
            out = out.index_select(2, rows.slots).index_select(3, columns.slots)
            return out.flatten(2, 3).to(v.dtype)

    def _by_natten(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        from natten.functional import na2d

        maps = (x.transpose(1, 2).unflatten(1, hw_shape) for x in (q, k, v))  # (B, H, W, heads, d)
        out = na2d(*maps, kernel_size=self.kernel_size, dilation=self.dilation)
        return out.flatten(1, 2).transpose(1, 2)
