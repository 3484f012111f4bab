import math
import warnings
from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops._checks import has_values
from mmlaplace.ops.precision import no_autocast, upcast, wide_dtype

from ..layers import linear_attention
from .base import QKVAttention

# Added to each feature, as in the authors' code.
FEATURES = {'softmax': 1e-4, 'relu': 1e-3}


@MODELS.register_module()
class PerformerAttention(QKVAttention):
    r"""Performer: random features whose products estimate the softmax kernel (FAVOR+).

    With a random matrix W (m, d) of orthogonal blocks and :math:`x' = x \, d^{-1/4}`:

    .. math::
        \phi(x) = \exp\big( W x' - \tfrac{1}{2} \lVert x' \rVert^2 - \max W x' \big) + \epsilon
        \quad \text{or} \quad \phi(x) = \mathrm{relu}(W x') + \epsilon

        y_i = \frac{\phi(q_i) \sum_j \phi(k_j)^T v_j}{\phi(q_i) \cdot \sum_j \phi(k_j)}

    The maximum for a query is over its features. The maximum for keys is over the features and
    tokens of the head. Time is :math:`O(N m d)` per head. The features have no parameters. W is a
    buffer in the state dict, and all heads share it. It changes only when :meth:`redraw` is called.
    The authors redraw it every 1000 training steps. In a config,
    :class:`~mmlaplace.engine.RedrawFeaturesHook` does this, and gives an averaged model the same W.
    An average of draws is no draw: they cancel out. With such a W, :meth:`train` and ``eval`` warn.
    Features and normalisers are fp32 under any autocast.

    The larger the map or the queries and keys, the more features of keys are at the floor
    :math:`\epsilon`. Attention then becomes average pooling. At 784 tokens of unit variance, 97 %
    of these features are at the floor, and at a fourfold scale all of them.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        features: ``'softmax'`` (default) or ``'relu'``.
        num_features: Number m of features. Default: :math:`d \ln d`, rounded down, and at least 1.
        eps: The floor. Default: 1e-4 for ``'softmax'``, 1e-3 for ``'relu'``.
        equal_norms: Whether all rows of W have the norm :math:`\sqrt{d}`. If not, they have the
            norms of random vectors. Default: False.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``. The authors' queries, keys
            and values have no biases: ``qkv_bias=False``.

    Raises:
        ValueError: For unknown features, or numbers out of range.

    Cost: NCm to mix; 4C² weights.

    Published: SOFT's table: 76.1; Flowformer's table: 78.1.

    Source: Rethinking Attention with Performers (arXiv 2009.14794).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PerformerAttention
        >>> attention = PerformerAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
        >>> attention.projection_matrix.shape
        torch.Size([110, 32])
    """

    not_promised = dict(
        gradients="the largest exponent is a constant to them, as in the authors' code"
    )
    no_prefix_tokens = ''
    tested_options = (dict(features='relu', rope=True), dict(num_features=70, equal_norms=True))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        features: str = 'softmax',
        num_features: Optional[int] = None,
        eps: Optional[float] = None,
        equal_norms: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if features not in FEATURES:
            raise ValueError(f'features must be one of {tuple(FEATURES)}, got {features!r}')
        dims = self.head_dims
        if num_features is None:
            num_features = max(int(dims * math.log(dims)), 1)
        eps = FEATURES[features] if eps is None else eps
        if not isinstance(num_features, int) or num_features < 1 or not 0 < eps < math.inf:
            raise ValueError(
                f'num_features ({num_features!r}) must be an integer of at least 1, eps ({eps}) '
                'positive and finite'
            )
        self.features = features
        self.eps = eps
        self.equal_norms = equal_norms
        self.register_buffer('projection_matrix', torch.empty(num_features, dims))
        self.redraw()

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw another W.

        In distributed training, broadcast the buffer after it. A copy of the model that has an
        average of its weights needs the same W, see :func:`mmlaplace.engine.copy_features`.
        """
        matrix = self.projection_matrix
        rows, dims = matrix.shape
        # LAPACK knows no halves, whatever the default dtype is.
        wide = dict(dtype=wide_dtype(matrix), device=matrix.device)
        normal = torch.randn(-(-rows // dims), dims, dims, **wide)
        orthogonal = torch.linalg.qr(normal)[0].mT.flatten(0, 1)[:rows]
        norms = torch.randn(rows, dims, **wide).norm(dim=1, keepdim=True)
        matrix.copy_(orthogonal * (dims**0.5 if self.equal_norms else norms))

    def train(self, mode: bool = True) -> 'PerformerAttention':
        """Set the mode, and warn if W is an average of several draws."""
        matrix = self.projection_matrix
        if has_values(matrix):
            square = upcast(matrix)[0].square().mean().item()
            # The mean square of a draw is 1, with this standard deviation at most.
            if square < 1 - 5 * (2 / matrix.numel()) ** 0.5:
                warnings.warn(
                    'projection_matrix of PerformerAttention is no draw of random features: its '
                    f'mean square is {square:.2g} and not 1, as in an average of several draws; '
                    "copy the trained model's by "
                    'mmlaplace.engine.copy_features(model, averaged.module)',
                    stacklevel=2,
                )
        return super().train(mode)

    def _features(self, x: Tensor, largest_over: Tuple[int, ...]) -> Tensor:
        """``(B, heads, N, d)`` to ``(B, heads, N, m)``."""
        x = x * self.head_dims**-0.25
        projected = x @ self.projection_matrix.to(x.dtype).transpose(-2, -1)
        if self.features == 'relu':
            return F.relu(projected) + self.eps
        largest = projected.amax(largest_over, keepdim=True).detach()
        half_norm = 0.5 * x.square().sum(-1, keepdim=True)
        return (projected - half_norm - largest).exp() + self.eps

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key = upcast(q, k)
            query, key = self._features(query, (-1,)), self._features(key, (-2, -1))
            return linear_attention(query, key, v, eps=0)  # the floor keeps sums positive
