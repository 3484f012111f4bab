import math
from typing import Optional, Tuple

import torch
import torch.nn as nn
from mmengine.model import Sequential
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops import gaussian_kernel, newton_schulz_inverse
from mmlaplace.ops.inverse import add_ridge, identity_like
from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import LandmarkConv, LandmarkPick, LandmarkPool
from .base import QKVAttention

SAMPLINGS = ('conv', 'average', 'random', 'biased')
STEP_SIZES = ('matrix', 'batch')


@MODELS.register_module()
class SOFTAttention(QKVAttention):
    r"""Softmax-free attention: the Nyström form of a Gaussian kernel, in time linear in the tokens.

    Per head, with Q = K scaled by :math:`d^{-1/4}`, landmarks L sampled from Q and brought through
    LayerNorm and GELU, and :math:`k(x, y) = \exp(-\lVert x - y \rVert_2^2 / 2)`:

    .. math::
        C = k(Q, L), \quad W = k(L, L), \quad
        \mathrm{out} = \mathrm{proj}\big( C\, W^\dagger\, (C^T V) + \mathrm{DWConv}(V) \big)

    With ``normalized`` (SOFT++), :math:`W^\dagger` becomes :math:`D^{-1/2} W^\dagger D^{-1/2}`
    with the row sums D of W, which keeps its norm from growing with the number of landmarks.

    The inverse is the authors' Newton iteration: it starts at :math:`\alpha W`, so that directions
    of W with vanishing eigenvalues, such as those of equal landmarks, stay out of it, and its
    gradient is implicit. SOFT adds a ridge and takes :math:`\alpha = 1.8 / r^2` with the largest
    row sum r of W; SOFT++ has no ridge and takes :math:`\alpha = 2 / r^2`, halved, ten times at
    most, while :math:`\lVert I - \alpha W^2 \rVert_1 > 1.01`.

    Args:
        embed_dims, num_heads, input_resolution, qkv_bias, proj_drop, init_cfg: As in
            :class:`QKVAttention`; queries and keys always share a linear.
        normalized: Whether this is SOFT++. Default: True.
        sampling: How landmarks are taken: ``'conv'`` (r x r, stride r, the default),
            ``'average'`` of r x r tokens, ``'random'`` tokens or, ``'biased'``, the first ones.
        landmarks: Fixed number m, a square, for maps of any size; None lets m grow with the image.
            Default: 49.
        pool_ratio: r. Default: the largest that gives ``landmarks`` cells of r x r tokens at
            ``input_resolution``.
        dw_kernel_size: Odd kernel size of the depthwise convolution on V, one filter per head
            without a bias; 0 leaves it out. Default: 3.
        step_size: ``'matrix'`` (default): every matrix has its own :math:`\alpha`. ``'batch'``, the
            authors' SOFT++, has one for all, which makes the result for an image depend on the
            others of the batch; for converted weights, if that matters.
        num_iters: Newton steps. Default: 20.
        ridge: Added to the diagonal of W. Default: 1e-2, with ``normalized`` 0.

    Raises:
        ValueError: For an unknown sampling or step size, or numbers out of range.

    Source: SOFT (arXiv 2110.11945) and SOFT++ (arXiv 2207.03341).
    """

    fixed_options = ('share_qk', 'rope', 'dw_cfg')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        normalized: bool = True,
        sampling: str = 'conv',
        landmarks: Optional[int] = 49,
        pool_ratio: Optional[int] = None,
        dw_kernel_size: int = 3,
        step_size: str = 'matrix',
        num_iters: int = 20,
        ridge: Optional[float] = None,
        **kwargs,
    ) -> None:
        super().__init__(
            embed_dims,
            num_heads,
            input_resolution,
            share_qk=True,
            rope=False,
            dw_kernel_size=dw_kernel_size,
            dw_cfg=dict(shared='channels', bias=False),
            **kwargs,
        )
        for name, value, known in (
            ('sampling', sampling, SAMPLINGS),
            ('step_size', step_size, STEP_SIZES),
        ):
            if value not in known:
                raise ValueError(f'{name} must be one of {known}, got {value!r}')
        ridge = (0.0 if normalized else 1e-2) if ridge is None else ridge
        if num_iters < 1 or not 0 <= ridge < math.inf:
            raise ValueError(
                f'num_iters ({num_iters}) must be at least 1, ridge ({ridge}) finite and not '
                'negative'
            )
        if pool_ratio is None and landmarks is None:
            raise ValueError('give landmarks, pool_ratio or both, got None for both')
        self.normalized = normalized
        self.step_size = step_size
        self.num_iters = num_iters
        self.ridge = ridge
        if sampling == 'conv':
            if pool_ratio is None:
                pool_ratio = max(int(min(self.input_resolution) / landmarks**0.5), 1)
            self.sample = LandmarkConv(self.head_dims, pool_ratio, landmarks)
        elif sampling == 'average':
            self.sample = LandmarkPool(landmarks, None if landmarks else pool_ratio)
        else:
            self.sample = LandmarkPick(landmarks, pool_ratio, at_random=sampling == 'random')
        self.landmark_norm = Sequential(nn.LayerNorm(self.head_dims), nn.GELU())

    def invert(self, mat: Tensor) -> Tensor:
        r""":math:`W^\dagger` of Gaussian matrices ``(B, heads, m, m)``, normalised if so chosen."""
        with torch.no_grad():
            start = self._step(mat) * add_ridge(mat, self.ridge)
        inverse = newton_schulz_inverse(mat, self.num_iters, self.ridge, start=start, check=False)
        if not self.normalized:
            return inverse
        root = mat.sum(-1).rsqrt()
        return root.unsqueeze(-1) * inverse * root.unsqueeze(-2)

    def _step(self, mat: Tensor) -> Tensor:
        r"""The first step's :math:`\alpha`, ``(B, heads, 1, 1)`` or of one value."""

        def largest(values: Tensor) -> Tensor:
            if self.step_size == 'batch':
                return values.amax()
            return values.amax(-1)[..., None, None]

        step = (2.0 if self.normalized else 1.8) / largest(mat.sum(-1)).square()
        if self.normalized:
            identity, square = identity_like(mat), mat @ mat
            for _ in range(10):
                norm = largest((identity - step * square).abs().sum(-2))
                step = torch.where(norm > 1.01, step / 2, step)
        return step

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        query = q * self.head_dims**-0.25
        marks = self.landmark_norm(self.sample(query, hw_shape))
        with no_autocast(v.device):
            query, marks, value = upcast(query, marks, v)
            kernel = gaussian_kernel(query, marks, 1.0)
            inverse = self.invert(gaussian_kernel(marks, marks, 1.0))
            return (kernel @ (inverse @ (kernel.transpose(-2, -1) @ value))).to(v.dtype)
