from importlib.util import find_spec
from typing import Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from .base import QKVAttention

BACKENDS = ('auto', 'natten', 'reference')


def neighbours(side: int, kernel_size: int, dilation: int, device: torch.device) -> Tensor:
    """The places that each place of an axis sees, ``(side, k)`` with k at most ``kernel_size``.

    They are the k of its own residue modulo the dilation that are nearest to it. At an edge they
    are moved inwards, so that each place sees as many. An axis that is too short has a smaller
    dilation, then a smaller k.
    """
    dilation = min(dilation, max(1, side // kernel_size))
    count = min(kernel_size, side // dilation)
    place = torch.arange(side, device=device)
    step, residue = place // dilation, place % dilation
    steps = (side - residue + dilation - 1) // dilation  # places of this residue
    first = (step - count // 2).clamp(min=0).minimum(steps - count)
    return (first[:, None] + torch.arange(count, device=device)) * dilation + residue[:, None]


@MODELS.register_module()
class NeighborhoodAttention(QKVAttention):
    r"""Neighbourhood attention: softmax over the k x k tokens around each query.

    Per head, with :math:`\rho(i)` the k x k places nearest to i, moved inwards at an edge:

    .. math:: y_i = \sum_{j \in \rho(i)} \mathrm{softmax}_j(q_i \cdot k_j / \sqrt{d})\, v_j

    With a dilation, places are that many steps apart. Time is linear, :math:`O(N C k^2)`, and no
    token sees the whole map. The softmax is fp32 under any autocast. A map of fewer than k tokens
    a side is seen whole.

    On a GPU, natten's fused kernels compute it, where that package is installed
    (``pip install natten``). Without, it is computed for one neighbour after the other. This takes
    :math:`O(N k^2)` memory, and :math:`O(N C k^2)` while training. The two have the same values.
    The GPU path has not been run.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        kernel_size: Odd side k of the neighbourhood, in tokens. Default: 7.
        dilation: Steps between its places. Default: 1. DiNAT has up to the map's side over k in
            every second block.
        backend: ``'auto'`` (default), ``'natten'`` or ``'reference'``.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Raises:
        ValueError: For a ``kernel_size`` that is even or below 3, a ``dilation`` below 1, or an
            unknown backend.
        ImportError: For ``backend='natten'`` without the package.

    Source: NAT (arXiv 2204.07143), DiNAT (arXiv 2209.15001). Their learned relative bias is left
    out, as natten has no kernel with one.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import NeighborhoodAttention
        >>> attention = NeighborhoodAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    fixed_options = ('sr_ratio',)
    variants = (dict(kernel_size=3, dilation=2, rope=True, lepe_kernel=3),)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        kernel_size: int = 7,
        dilation: int = 1,
        backend: str = 'auto',
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if kernel_size < 3 or kernel_size % 2 == 0:
            raise ValueError(f'kernel_size must be odd and at least 3, got {kernel_size}')
        if dilation < 1:
            raise ValueError(f'dilation must be at least 1, got {dilation}')
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
        rows, columns = (
            neighbours(side, self.kernel_size, self.dilation, q.device) for side in hw_shape
        )
        places = rows[:, None, :, None] * hw_shape[1] + columns[None, :, None, :]
        places = places.flatten(2).flatten(0, 1).unbind(1)  # k * k of (N,)
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query = query * self.head_dims**-0.5
            weights = torch.stack([(query * key[:, :, place]).sum(-1) for place in places], dim=-1)
            parts = weights.softmax(-1).unsqueeze(-2).unbind(-1)  # k * k of (B, heads, N, 1)
            out = sum(part * value[:, :, place] for part, place in zip(parts, places))
            return out.to(v.dtype)

    def _by_natten(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        from natten.functional import na2d

        maps = (x.transpose(1, 2).unflatten(1, hw_shape) for x in (q, k, v))  # (B, H, W, heads, d)
        out = na2d(*maps, kernel_size=self.kernel_size, dilation=self.dilation)
        return out.flatten(1, 2).transpose(1, 2)
