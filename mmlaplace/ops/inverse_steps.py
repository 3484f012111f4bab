"""Steps towards an inverse by products, which a graph for ONNX can hold as one node.

An exporter's time grows with the nodes of its graph, above all with dynamic sizes.
:mod:`mmlaplace.deployment.onnx_forms` writes the node as standard operators.
"""

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from . import _native
from .backend import runtime_has

STEPS = '_inverse_steps'


def steps(
    mat: Tensor,
    start: Tensor,
    doubled: Tensor,
    factors: Sequence[float],
    limit: Optional[Tensor] = None,
) -> Tensor:
    """The specification of :func:`inverse_steps`."""
    inverse = start
    for factor in factors:
        # Never (XP)X, which ends two digits worse on ill-conditioned P.
        inverse = inverse @ (doubled - mat @ inverse)
        inverse = inverse if factor == 1 else factor * inverse
        inverse = inverse if limit is None else inverse.clamp(-limit, limit)
    return inverse


def inverse_steps(
    mat: Tensor,
    start: Tensor,
    doubled: Tensor,
    factors: Sequence[float],
    limit: Any = None,
) -> Tensor:
    r"""Newton–Schulz steps :math:`X \leftarrow f X (2I - PX)`.

    Args:
        mat: P ``(..., m, m)``.
        start: The first X, of the same shape.
        doubled: 2I, ``(m, m)``.
        factors: The f of each step.
        limit: The largest absolute value of an entry, a number or a tensor ``(..., 1, 1)``.
            Default: None.
    """
    if limit is not None and not isinstance(limit, Tensor):
        limit = torch.full((), limit, dtype=mat.dtype, device=mat.device)
    if runtime_has(STEPS):
        return getattr(torch.ops.mmlaplace, STEPS)(mat, start, doubled, list(factors), limit)
    return steps(mat, start, doubled, factors, limit)


def _fake(mat: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(mat)


_native.define(
    f'{STEPS}(Tensor mat, Tensor start, Tensor doubled, float[] factors, Tensor? limit) -> Tensor',
    steps,
    _fake,
)
