from typing import Any, Callable, Dict, Optional, Set, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops import (
    cholesky_inverse,
    newton_schulz_inverse,
    normalized_nystrom_attention,
    nystrom_attention,
)
from mmlaplace.ops.backend import exporting
from mmlaplace.ops.landmark_attention import (
    WHOLE,
    fits,
    in_runtime,
    landmark_attention,
)
from mmlaplace.ops.normalized_nystrom_attention import FLOOR
from mmlaplace.ops.precision import no_autocast, outside_autocast, upcast

from ..layers import Landmarks
from ..layers.checks import check_counts
from ..layers.kernels import choose_kernel
from ..layers.solvers import conjugate_gradient_inverse
from .base import QKVAttention
from .frame import Frame

SOLVERS = ('auto', 'newton_schulz', 'cholesky', 'conjugate_gradient')
NORMALIZATIONS = ('whitened', 'rows', 'none')
WHITENINGS = ('normalized', 'literal', 'none')
LANDMARK_METHODS = ('pool', 'conv', 'random')
LANDMARKS_FROM = ('keys', 'queries', 'both')
CENTRED_OVER = ('queries', 'keys', 'both')


@MODELS.register_module()
class LaplacianAttention(QKVAttention):
    r"""Nyström attention under a Laplacian kernel, in time linear in the tokens.

    Per head, with landmarks L (m, d) pooled from the map of the keys or of the queries, and the
    kernel
    :math:`k(x, y) = \exp(-\lVert x - y \rVert_1 / \lambda)`:

    .. math::
        C_q = k(Q, L), \quad A = (k(L, L) + \varepsilon I)^{-1} k(K, L)^T, \quad
        \hat G = C_q A \approx k(Q, K)

        \bar c = \mathrm{mean}_i\, C_q[i], \quad \sigma_j^2 = A_j^T \mathrm{Cov}_i(C_q)\, A_j

        Z V = s\, (C_q - 1 \bar c^T)
              \big[ A\, \mathrm{diag}(\sigma^2 + \varepsilon_w)^{-1/2}\, V \big]
              + \mathrm{mean}_j V_j

    Z is the N x N matrix :math:`\hat G` with each column normalised to mean zero and unit variance,
    plus 1/N. The formula for Z V is exact, and Z itself is never computed. In the literal form the
    scale s is 1, and the output grows with N. In the normalized form it is :math:`\gamma / N`, with
    a learned :math:`\gamma` per head that starts at the square root of the training N. This is the
    paper's form. Its text can also be read with the mean of each row in place of that of each
    column, see ``centred_over``.

    With ``normalization='rows'``, each row of :math:`\hat G` is divided by its sum, as softmax
    attention does, so that :math:`Z_{ij} = \hat G_{ij} / \sum_l \hat G_{il}`, see
    :func:`~mmlaplace.ops.normalized_nystrom_attention`. This is our form and not the paper's. It
    needs a pass less over the tokens. Where the sum of a row cancels, its result is large, up to
    1e6 times the values, which is more than fp16 holds. This was seen with the Gaussian kernel and
    tokens far apart. With ``normalization='none'``, Z is :math:`\gamma \hat G / N`, which is not
    centred.

    Landmarks are of the map alone. Prefix tokens are queries and keys like the others, and so in
    the means of the whitening and in the sums of the rows. As rotary positions act inside of this
    rule, prefix tokens keep theirs at an angle of zero.

    Everything but the linears and the convolution runs in fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        num_landmarks: Fixed number m of landmarks, a square such as 49. Landmarks are averages of
            tokens with their rotary positions, for maps of any size. Default: 49, unless
            ``pool_ratio`` is given.
        pool_ratio: Alternative to ``num_landmarks``: each cell of r x r tokens becomes one, so
            m grows with the image. The paper has 8, 4, 2 and 1 in its stages, which at 224 x 224 is
            m = 49 everywhere. Default: none.
        kernel: ``'laplacian'`` (default) or ``'gaussian'``.
        bandwidth: :math:`\lambda` of the Laplacian (default 4) or :math:`\sigma` of the Gaussian
            kernel (default ``head_dims ** 0.25``).
        normalization: ``'whitened'`` (default), ``'rows'`` or ``'none'``.
        landmark_method: ``'pool'`` (default), ``'conv'`` or ``'random'``, as in :class:`Landmarks`.
        landmarks_from: The tokens that landmarks are averages of: ``'keys'`` (default),
            ``'queries'``, or ``'both'``. With ``'both'`` there are landmarks :math:`L_q` of the
            queries and :math:`L_k` of the keys, and :math:`\hat G = k(Q, L_k) (W^T W + \varepsilon
            I)^{-1} W^T k(L_q, K)` with :math:`W = k(L_q, L_k)`, which is not symmetric. This takes
            twice the time.
        centred_over: Which mean the whitening subtracts from an entry of :math:`\hat G`:
            ``'queries'`` (default, of its column), ``'keys'`` (of its row), or ``'both'`` (of its
            row and of its column, plus the mean of all entries). The last two store N x m values.
            Default: ``'queries'`` with ``normalization='whitened'``, and else None.
        whitening: How it is whitened: ``'normalized'`` (:math:`s = \gamma / N`) or ``'literal'`` (s
            = 1). ``'none'`` is ``normalization='none'``. Default: ``'normalized'`` with
            ``normalization='whitened'``, and else None.
        solver: ``'newton_schulz'`` (the paper's), ``'cholesky'`` (exact), ``'conjugate_gradient'``
            (the paper's ablation), or ``'auto'`` (default). ``'auto'`` takes the exact inverse on a
            CPU, where it was measured to be faster. Elsewhere it takes the exact inverse up to m =
            64, where it needs a twentieth of the multiplications, and Newton–Schulz for larger m.
        num_iters: Steps of Newton–Schulz or of conjugate gradients. Default: 20.
        ridge: :math:`\varepsilon`. Default: 1e-2.
        whitening_eps: :math:`\varepsilon_w`. Default: 1e-5 with ``normalization='whitened'``, and
            else None.
        **frame: Fields of :class:`Frame` that differ from ``Frame(rope=True, lepe_kernel=3)``.
            There is no ``sr_ratio``, as keys and values are not reduced.

    Raises:
        ValueError: For an unknown kernel, normalization, whitening, mean or solver, options of the
            whitening without it, numbers out of range, both landmark arguments at once, or
            landmarks that are no square.

    Cost: NCm + hm³ to mix; 4C² + 9C + h weights.

    Published: its own pyramid: tiny 81.4, small 83.8, medium 85.3, large 85.6, huge 85.8.

    Source: LaplacianFormer (arXiv 2604.20368).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LaplacianAttention
        >>> attention = LaplacianAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 15 * 20, 64), hw_shape=(15, 20)).shape
        torch.Size([1, 300, 64])
    """

    frame = Frame(rope=True, lepe_kernel=3)
    rotates_in_mix = True
    fixed_options = ('sr_ratio',)
    mixes_queries = True
    no_prefix_tokens = ''
    tested_options = (
        dict(qkv='shared_qk'),
        dict(pool_ratio=2, kernel='gaussian'),
        dict(whitening='literal', solver='newton_schulz', num_landmarks=4),
        dict(whitening='none', solver='conjugate_gradient', num_landmarks=9),
        dict(normalization='rows', landmarks_from='queries', num_landmarks=4),
        dict(normalization='rows', pool_ratio=2, solver='newton_schulz'),
        dict(landmarks_from='queries', num_landmarks=9),
        dict(normalization='rows', landmarks_from='both', num_landmarks=4),
        dict(landmarks_from='both', num_landmarks=4, centred_over='both'),
        dict(centred_over='keys', num_landmarks=9),
        dict(landmark_method='conv', pool_ratio=2, normalization='rows'),
        dict(landmark_method='random', num_landmarks=4),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        num_landmarks: Optional[int] = None,
        pool_ratio: Optional[int] = None,
        kernel: str = 'laplacian',
        bandwidth: Optional[float] = None,
        normalization: Optional[str] = None,
        landmark_method: str = 'pool',
        landmarks_from: str = 'keys',
        whitening: Optional[str] = None,
        centred_over: Optional[str] = None,
        solver: str = 'auto',
        num_iters: int = 20,
        ridge: float = 1e-2,
        whitening_eps: Optional[float] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        normalization, whitening, centred_over, whitening_eps = _normalization(
            normalization, whitening, centred_over, whitening_eps
        )
        for name, value, known in (
            ('solver', solver, SOLVERS),
            ('landmark_method', landmark_method, LANDMARK_METHODS),
            ('landmarks_from', landmarks_from, LANDMARKS_FROM),
        ):
            if value not in known:
                raise ValueError(f'{name} must be one of {known}, got {value!r}')
        kernel_fn, bandwidth = choose_kernel(kernel, bandwidth, self.head_dims)
        check_counts(num_iters=num_iters)
        if ridge is None or ridge < 0:
            raise ValueError(f'ridge must not be negative, got {ridge}')
        self.kernel = kernel
        self.kernel_fn = kernel_fn
        self.bandwidth = bandwidth
        self.solver = solver
        self.num_iters = num_iters
        self.ridge = ridge
        self.whitening_eps = whitening_eps
        self.landmarks = Landmarks(num_landmarks, pool_ratio, landmark_method, self.head_dims)
        self.landmarks_from = landmarks_from
        self.normalization = normalization
        self.whitening = whitening
        self.centred_over = centred_over
        # The sums of the rows cancel a scale.
        if normalization != 'rows' and whitening != 'literal':
            height, width = self.input_resolution
            tokens = height * width + self.num_prefix_tokens
            self.gamma = nn.Parameter(torch.full((num_heads,), tokens**0.5))
        else:
            self.register_parameter('gamma', None)

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay: the scale starts far from zero."""
        return {'gamma'}

    def invert(self, mat: Tensor) -> Tensor:
        """``(mat + ridge * I)^-1`` by the chosen solver. It is NaN for a matrix with a NaN."""
        solver = self.solver
        if solver == 'auto':
            exact = mat.device.type in ('cpu', 'meta') or mat.shape[-1] <= 64
            solver = 'cholesky' if exact else 'newton_schulz'
        if solver == 'cholesky':
            bound = self.largest_eigenvalue(mat)
            return cholesky_inverse(mat, ridge=self.ridge, bound=bound, check=False)
        if solver == 'conjugate_gradient':
            return conjugate_gradient_inverse(mat, self.num_iters, self.ridge)
        return newton_schulz_inverse(mat, self.num_iters, self.ridge, check=False)

    def largest_eigenvalue(self, mat: Tensor) -> Optional[float]:
        """A bound of the eigenvalues of a matrix that is inverted, None where m is not known.

        Entries of a kernel are at most 1, so those of m landmarks are at most m.
        """
        count = self.landmarks.num_landmarks or mat.shape[-1]
        if not isinstance(count, int):  # in graphs for maps of any size
            return None
        return float(count**2 if self.landmarks_from == 'both' else count)

    def has_own_steps(self) -> bool:
        """Whether an op for the whole mixing rule has these landmarks and this inverse inside.

        Nobody may watch or replace them either.
        """
        if self.centred_over in ('keys', 'both') or self.solver not in ('auto', 'cholesky'):
            return False
        if self.num_prefix_tokens:  # it takes landmarks of all tokens
            return False
        if self.landmarks_from == 'both' or self.landmarks.method != 'pool':
            return False
        watched = 'invert' in self.__dict__ or bool(self.landmarks._forward_hooks)
        return not watched and type(self).invert is LaplacianAttention.invert

    def whole_inputs(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> tuple:
        """The arguments of the ops for the whole mixing rule."""
        rotary, form = None, 'half'
        if self.rotary is not None:
            rotary, form = self.rotary.table(k, hw_shape), self.rotary.pairing
        return (
            q,
            k,
            v,
            self.gamma,
            rotary,
            form,
            *hw_shape,
            *self.landmarks.cells(hw_shape),
            self.kernel,
            float(self.bandwidth),
            float(self.ridge),
            None if self.whitening_eps is None else float(self.whitening_eps),
        )

    def mix_in_one_op(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """:meth:`mix` with the exact inverse, by one op for GPUs."""
        return landmark_attention(*self.whole_inputs(q, k, v, hw_shape))

    def mix_in_runtime(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """:meth:`mix` with the exact inverse, as one node of a graph for a runtime."""
        inputs = self.whole_inputs(q, k, v, hw_shape)
        floor = FLOOR if self.normalization == 'rows' else None
        op = getattr(torch.ops.mmlaplace, WHOLE)
        return op(*inputs, floor, self.landmarks_from == 'queries')

    def fits_gpu(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> bool:
        """Whether the op for GPUs has this normalization and takes these tokens."""
        if not q.is_cuda or self.normalization == 'rows' or self.landmarks_from != 'keys':
            return False
        return fits(q, k, v, self.landmarks.count(hw_shape))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        # On a CPU in eager mode, where there is no such op, blocks ask no further.
        if hw_shape is not None and (q.is_cuda or exporting()) and self.has_own_steps():
            if in_runtime():
                return self.mix_in_runtime(q, k, v, hw_shape)
            if self.fits_gpu(q, k, v, hw_shape):
                return self.mix_in_one_op(q, k, v, hw_shape)
        landmarks, inverse = self.landmarks_and_inverse(q, k, hw_shape)
        options: Dict[str, Any] = dict(kernel=self.kernel)
        if self.rotary is not None:
            table = self.rotary.table(k, hw_shape, self.num_prefix_tokens)
            options.update(rotary=table, rotary_form=self.rotary.pairing)
        inputs = (q, k, v, landmarks, inverse, self.bandwidth)
        if self.normalization == 'rows':
            return normalized_nystrom_attention(*inputs, **options)
        if self.gamma is not None:
            options['scale'] = self.gamma.to(landmarks.dtype)[:, None, None] / v.shape[-2]
        if self.centred_over in ('keys', 'both'):
            return self.mix_centred(q, k, v, landmarks, inverse, hw_shape)
        return nystrom_attention(*inputs, whitening_eps=self.whitening_eps, **options)

    def landmarks_and_inverse(
        self, q: Tensor, k: Tensor, hw_shape: Tuple[int, int]
    ) -> Tuple[Tensor, Tensor]:
        """Landmarks ``(B, heads, m, d)`` and P ``(B, heads, m, m)``, both at least fp32.

        The matrix of the kernel is k(Q, L) P k(L, K). With landmarks of both, L has those of the
        keys and then those of the queries, and P is zero but for its upper right quarter.
        """
        if prefix := self.num_prefix_tokens:
            q, k = q[:, :, prefix:], k[:, :, prefix:]
        if self.landmarks_from != 'both':
            landmarks = self.landmarks_of(q if self.landmarks_from == 'queries' else k, hw_shape)
            return landmarks, self.invert(self.kernel_fn(landmarks, landmarks, self.bandwidth))
        of_queries, of_keys = (self.landmarks_of(x, hw_shape) for x in (q, k))
        mat = self.kernel_fn(of_queries, of_keys, self.bandwidth)
        with no_autocast(mat.device):
            adjoint = mat.transpose(-2, -1)
            inverse = self.invert(adjoint @ mat) @ adjoint
        count = mat.shape[-1]
        return torch.cat([of_keys, of_queries], 2), F.pad(inverse, (count, 0, 0, count))

    def landmarks_of(self, tokens: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, heads, N, d) -> (B, heads, m, d)``, in at least fp32 under any autocast."""
        if self.landmarks.method == 'pool':
            return self.landmarks(tokens, hw_shape, self.rotary)
        with no_autocast(tokens.device):
            conv = getattr(self.landmarks, 'conv', None)
            wide = upcast(tokens)[0] if conv is None else tokens.to(conv.weight.dtype)
            return upcast(self.landmarks(wide, hw_shape, self.rotary))[0]

    @outside_autocast
    def mix_centred(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        landmarks: Tensor,
        inverse: Tensor,
        hw_shape: Tuple[int, int],
    ) -> Tensor:
        """:meth:`mix` with a whitening that subtracts the mean of each row. It stores N x m."""
        query, key, value = upcast(q, k, v)
        if self.rotary is not None:
            turn: Callable = self.turn_behind_prefix if self.num_prefix_tokens else self.rotary
            query, key = turn(query, hw_shape), turn(key, hw_shape)
        of_query = self.kernel_fn(query, landmarks, self.bandwidth)  # (B, heads, N, m)
        of_key = inverse @ self.kernel_fn(landmarks, key, self.bandwidth)  # A, (B, heads, m, n)
        assert self.whitening_eps is not None
        # The variance of a column is the same, whatever is the mean that is subtracted later.
        centred = of_query - of_query.mean(-2, keepdim=True)
        covariance = centred.transpose(-2, -1) @ centred / query.shape[-2]
        variance = (of_key * (covariance @ of_key)).sum(-2, keepdim=True)  # (B, heads, 1, n)
        scaled = value / (variance + self.whitening_eps).sqrt().transpose(-2, -1)
        # Of each row, its mean over the keys is its product with the mean of A's columns.
        mean_of_key = of_key.mean(-1, keepdim=True)
        mixed = of_key @ scaled - mean_of_key @ scaled.sum(-2, keepdim=True)
        out = (centred if self.centred_over == 'both' else of_query) @ mixed
        if self.gamma is not None:
            out = out * (self.gamma.to(out.dtype)[:, None, None] / value.shape[-2])
        return (out + value.mean(-2, keepdim=True)).to(v.dtype)


def _normalization(
    normalization: Optional[str],
    whitening: Optional[str],
    centred_over: Optional[str],
    whitening_eps: Optional[float],
) -> Tuple[str, Optional[str], Optional[str], Optional[float]]:
    """The four options with their defaults. Options of the whitening need it."""
    for name, value, known in (
        ('whitening', whitening, WHITENINGS),
        ('centred_over', centred_over, CENTRED_OVER),
    ):
        if value not in (None, *known):
            raise ValueError(f'{name} must be one of {known}, got {value!r}')
    if normalization is None:
        normalization = 'none' if whitening == 'none' else 'whitened'
    if normalization not in NORMALIZATIONS:
        raise ValueError(f'normalization must be one of {NORMALIZATIONS}, got {normalization!r}')
    if normalization == 'whitened':
        if whitening == 'none':
            raise ValueError(
                "whitening='none' does not whiten; write normalization='none', without whitening"
            )
        whitening_eps = 1e-5 if whitening_eps is None else whitening_eps
        if whitening_eps <= 0:
            raise ValueError(f'whitening_eps must be positive, got {whitening_eps}')
        return normalization, whitening or 'normalized', centred_over or 'queries', whitening_eps
    if whitening not in (None, 'none'):
        raise ValueError(
            f'whitening={whitening!r} has no effect with normalization={normalization!r}; leave '
            "one of them out, or write normalization='whitened'"
        )
    given = dict(centred_over=centred_over, whitening_eps=whitening_eps)
    for name, option in given.items():
        if option is not None:
            raise ValueError(
                f'{name}={option!r} has no effect with normalization={normalization!r}; leave it '
                'out'
            )
    return normalization, None, None, None
