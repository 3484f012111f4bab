"""Common code of the inverses: derivatives of any order for every backend, and checks."""

import functools
from typing import Any, Callable, NamedTuple, Tuple

import torch
from torch import Tensor

from . import _checks, _native
from .backend import exporting, exporting_to_onnx
from .precision import full_fp32, upcast


class Inversion(NamedTuple):
    """A way to invert: ``(mat, *constants) -> X``.

    Attributes:
        compute: The function. Its constants are tensors without a gradient.
        of_mean: Whether it inverts the mean of ``mat`` and its transpose.
        compiled: Whether it is a compiled op with a registered derivative.
    """

    compute: Callable
    of_mean: bool = False
    compiled: bool = False

    def __call__(self, mat: Tensor, *constants: Tensor) -> Tensor:
        """X in at least fp32, and then in the dtype of ``mat``. It has derivatives."""
        if not _checks.is_recording():
            return self.differentiable(mat, *constants)
        # Recorded graphs take no autograd Function.
        if self.compiled or torch.jit.is_tracing() or exporting_to_onnx():
            return self.compute(mat, *constants)
        return self._in_graph(mat, *constants)

    def differentiable(self, mat: Tensor, *constants: Tensor) -> Tensor:
        """X by :class:`Inverse`, which supports autograd and the transforms of torch.func."""
        (wide,) = upcast(mat)
        return Inverse.apply(self, wide, *constants).to(mat.dtype)

    def _in_graph(self, mat: Tensor, *constants: Tensor) -> Tensor:
        """X in graphs of torch.compile. It has only the first derivative."""
        (wide,) = upcast(mat)
        inverse = self.compute(wide.detach(), *constants)
        # The inputs of an exported graph may get gradients later.
        if torch.is_grad_enabled() and (wide.requires_grad or exporting()):
            # Adds a zero whose derivative is that of the inverse.
            change = wide - wide.detach()
            change = mean_of_triangles(change) if self.of_mean else change
            inverse = inverse - inverse @ change @ inverse
        return inverse.to(mat.dtype)

    def gradient(self, grad: Tensor, inverse: Tensor) -> Tensor:
        """``-X^T G X^T``, the gradient of the matrix that X inverts."""
        transposed = inverse.transpose(-2, -1)
        with full_fp32(grad.device):
            gradient = -(transposed @ grad @ transposed)
        return mean_of_triangles(gradient) if self.of_mean else gradient


class Inverse(_native.Function):
    """The X of an :class:`Inversion` with the derivative of an inverse, ``dX = -X dP X``.

    The derivative is a function of X alone, however X was computed. So are all further
    derivatives. X is kept for them.
    """

    @staticmethod
    def forward(inversion: Inversion, mat: Tensor, *constants: Tensor) -> Tensor:
        with _native.below_autograd(), full_fp32(mat.device):
            return inversion.compute(mat, *constants)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.inversion, ctx.constants = inputs[0], len(inputs) - 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        (inverse,) = ctx.saved_tensors
        return (None, ctx.inversion.gradient(grad, inverse), *[None] * ctx.constants)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, inversion: Inversion, *mats: Tensor) -> Tuple[Tensor, int]:
        return Inverse.apply(inversion, *batch_in_front(info.batch_size, in_dims[1:], *mats)), 0


def most_rows(mat: Tensor) -> int:
    """The rows of the largest matrix that the compiled inverses take on every device like its own.

    For larger ones LAPACK, BLAS and cuSOLVER are faster, as the references call them. Some GPUs
    have room for more, as the ops find out.
    """
    if mat.device.type == 'cpu':
        return 512
    return 32 if mat.dtype == torch.float64 else 64


def select(name: str, reference: Callable, mat: Tensor, backend: str) -> Callable:
    """As :func:`._native.select`, with the reference for matrices that are too large for the op."""
    pays = mat.shape[-1] <= most_rows(mat)
    return _native.select(name, reference, mat.device, backend, pays)


def batch_in_front(size: int, in_dims: tuple, *tensors: Tensor) -> list:
    """Tensors whose first axis is that of vmap. One without that axis is expanded."""
    return [
        tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        for tensor, axis in zip(tensors, in_dims)
    ]


def register(name: str, fake: Callable, of_mean: bool) -> None:
    """Register shapes, derivatives and autocast of a compiled inverse, if there is one."""

    def with_derivatives(mat: Tensor, *arguments: Any) -> Tensor:
        compute = functools.partial(_mat_first, _native.compiled(name), arguments)
        return Inversion(compute, of_mean).differentiable(mat)

    _native.register(name, fake, with_derivatives)


def _mat_first(op: Callable, arguments: tuple, mat: Tensor) -> Tensor:
    return op(mat, *arguments)


def mean_of_triangles(mat: Tensor) -> Tensor:
    """``(mat + mat^T) / 2``."""
    return torch.lerp(mat, mat.transpose(-2, -1), 0.5)


def add_ridge(mat: Tensor, ridge: float) -> Tensor:
    """``mat + ridge * I``, in at least fp32."""
    (mat,) = upcast(mat)
    return mat + ridge * identity_like(mat)


def identity_like(mat: Tensor) -> Tensor:
    """The identity ``(m, m)`` in the dtype and on the device of ``mat (..., m, m)``."""
    return torch.eye(mat.shape[-1], dtype=mat.dtype, device=mat.device)


def check_inputs(op: str, mat: Tensor, ridge: float) -> None:
    """Raise unless ``mat`` is a floating ``(..., m, m)`` tensor and the ridge is not negative."""
    _checks.check_square(op, mat)
    _checks.check_not_negative(op, 'ridge', ridge)


def check_rows(op: str, mat: Tensor) -> None:
    """Raise if the matrices of a CPU are too large for a compiled op."""
    if mat.device.type == 'cpu' and mat.shape[-1] > most_rows(mat):
        raise ValueError(
            f'{op}: on a CPU mat can have at most {most_rows(mat)} rows, got {mat.shape[-1]}; '
            "backend='reference' has no limit"
        )


def check_room(op: str, mat: Tensor) -> None:
    """Raise if the matrices are too large for a compiled op, or may be too large for its GPU."""
    check_rows(op, mat)
    if mat.shape[-1] > most_rows(mat):
        raise ValueError(
            f'{op}: a GPU may have no room for {mat.shape[-1]} rows of {mat.dtype}; each has for '
            f'{most_rows(mat)}'
        )


def raise_unless_finite(inverse: Tensor, op: str, mat: Tensor, ridge: float) -> None:
    """Raise an error that says what is wrong with ``mat``. Without an error, one value is read."""
    if not _checks.has_values(inverse) or inverse.isfinite().all():
        return
    _checks.check_finite(op, 'mat', mat)
    good = inverse.detach().reshape(-1, *mat.shape[-2:]).isfinite().all(-1).all(-1)
    first = int((~good).nonzero()[0])
    one = mat.detach().reshape(-1, *mat.shape[-2:])[first].double()
    smallest = torch.linalg.eigvalsh((one + one.T) / 2).min().item() + ridge
    cause = (
        'so it is not positive definite; raise ridge'
        if smallest <= 0
        else 'so rounding or the start is to blame; raise ridge, or give another start'
    )
    raise ValueError(
        f'{op}: {int((~good).sum())} of {good.numel()} matrices mat + {ridge} * I of shape '
        f'{tuple(mat.shape)} have no finite inverse; the smallest eigenvalue of matrix {first} is '
        f'{smallest:.3g}, {cause}'
    )
