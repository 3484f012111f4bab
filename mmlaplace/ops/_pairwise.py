"""Common code of the pairwise kernels: checks, and derivatives of any order for every backend."""

import functools
from typing import Any, Callable, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _checks, _native
from .backend import exporting
from .precision import fp32_under_autocast, upcast


class Metric(NamedTuple):
    """A kernel ``K`` of differences with ``dK / dq_c = derivative * K * slope(q_c - k_c)``.

    Attributes:
        name: The op's name.
        reference: ``(q, k, bandwidth) -> K`` in plain PyTorch.
        logarithm: ``(q, k, bandwidth) -> log K`` in plain PyTorch, which does not underflow.
        derivative: The factor, from the bandwidth.
        slope: An odd elementwise function.
        curvature: The derivative of ``slope``, or None if it is zero.
        smallest_bandwidth: With a smaller bandwidth, the factor or the exponent is infinite in
            fp32.
    """

    name: str
    reference: Callable[[Tensor, Tensor, float], Tensor]
    logarithm: Callable[[Tensor, Tensor, float], Tensor]
    derivative: Callable[[float], float]
    slope: Callable[[Tensor], Tensor]
    curvature: Optional[Callable[[Tensor], Tensor]]
    smallest_bandwidth: float

    def register(self) -> None:
        """Register shapes, derivatives and autocast of the compiled op, if there is one."""
        op = _native.find(self.name)
        if op is not None:
            fake = functools.partial(_fake, self)
            _native.register(self.name, fake, lambda *args: Kernel.apply(*args, self, op))
            gradient, of_gradient = (
                f'_{self.name}_backward',
                functools.partial(_fake_gradient, self),
            )
            _native.register(gradient, of_gradient, lambda *a: Gradient.apply(*a, self, op))

    def can_run(self, q: Tensor, k: Tensor, bandwidth: float) -> None:
        """Raise unless the compiled op takes these inputs."""
        _checks.check_query_key(self.name, q, k)
        check_bandwidth(self, bandwidth, q)

    def door(self) -> Callable[..., Any]:
        """The short way to the compiled op, see :func:`._native.door`."""
        return _native.door(self.name, fp32_under_autocast(self.can_run))

    def gradient(self, compute: Callable, *args: Any) -> Tuple[Tensor, Tensor]:
        """The gradients of q and k, by the backend that computed the kernel."""
        if compute is self.reference:
            return self._reference_gradient(*args)
        with _native.below_autograd():
            return _native.compiled(f'_{self.name}_backward')(*args)

    def _reference_gradient(
        self, grad: Tensor, q: Tensor, k: Tensor, out: Tensor, bandwidth: float
    ) -> Tuple[Tensor, Tensor]:
        with torch.enable_grad():
            q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
            of_q, of_k = torch.autograd.grad(self.reference(q, k, bandwidth), (q, k), grad)
            return of_q, of_k


class Logarithm(_native.Function):
    """``log K``, with derivatives of any order, which ``torch.cdist`` lacks."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, bandwidth: float, metric: Metric) -> Tensor:
        return metric.logarithm(q, k, bandwidth)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        q, k, *ctx.constants = inputs
        ctx.save_for_backward(q, k)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        bandwidth, metric = ctx.constants
        # The derivative of log K is that of a kernel whose values are all 1.
        plain = metric._replace(reference=metric.logarithm)
        constants = (bandwidth, plain, plain.reference)
        grads = Gradient.apply(grad, *ctx.saved_tensors, torch.ones_like(grad), *constants)
        return (*grads, None, None)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, q: Tensor, k: Tensor, *constants: Any
    ) -> Tuple[Tensor, int]:
        q, k = _batches_in_front(info.batch_size, in_dims, q, k)
        return Logarithm.apply(q, k, *constants).unflatten(0, (info.batch_size, -1)), 0


def logarithm_of_kernel(metric: Metric, q: Tensor, k: Tensor, bandwidth: float) -> Tensor:
    """``log K`` in plain PyTorch, ``(B, heads, N, M)``."""
    if _checks.is_recording() or exporting():  # graphs take operations
        return metric.logarithm(q, k, bandwidth)
    return Logarithm.apply(q, k, bandwidth, metric)


class Kernel(_native.Function):
    """``K = compute(q, k, bandwidth)``."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, bandwidth: float, metric: Metric, compute: Callable
    ) -> Tensor:
        with _native.below_autograd():
            return compute(q, k, bandwidth)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        q, k, *ctx.constants = inputs
        ctx.save_for_backward(q, k, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return (*Gradient.apply(grad, *ctx.saved_tensors, *ctx.constants), None, None, None)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, q: Tensor, k: Tensor, *constants: Any
    ) -> Tuple[Tensor, int]:
        q, k = _batches_in_front(info.batch_size, in_dims, q, k)
        return Kernel.apply(q, k, *constants).unflatten(0, (info.batch_size, -1)), 0


class Gradient(_native.Function):
    """``dq_i = sum_j w_ij slope(q_i - k_j)`` with ``w = derivative * grad * K``, and dk_j."""

    @staticmethod
    def forward(
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        out: Tensor,
        bandwidth: float,
        metric: Metric,
        compute: Callable,
    ) -> Tuple[Tensor, Tensor]:
        return metric.gradient(compute, grad, q, k, out, bandwidth)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        *tensors, bandwidth, metric, compute = inputs
        ctx.save_for_backward(*tensors)
        ctx.constants = bandwidth, metric, compute

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple:
        grad, q, k, out = ctx.saved_tensors
        bandwidth, metric, _ = ctx.constants
        weight = metric.derivative(bandwidth) * upcast(grad)[0] * out
        # Channel by channel, as the differences of all channels at once would be N * M * d.
        along = torch.zeros_like(weight)
        sums_q: List[Tensor] = []
        sums_k: List[Tensor] = []
        for channels in zip(*(tensor.unbind(-1) for tensor in upcast(q, k, dq, dk))):
            difference, change = (
                rows.unsqueeze(-1) - columns.unsqueeze(-2)
                for rows, columns in (channels[:2], channels[2:])
            )
            along = along + metric.slope(difference) * change
            if metric.curvature is not None:
                bend = weight * metric.curvature(difference) * change
                sums_q.append(bend.sum(-1))
                sums_k.append(-bend.sum(-2))
        along = metric.derivative(bandwidth) * along
        of_q, of_k = (
            torch.stack(sums, -1).to(q.dtype) if sums else None for sums in (sums_q, sums_k)
        )
        of_grad, of_out = (out * along).to(grad.dtype), (grad * along).to(out.dtype)
        return of_grad, of_q, of_k, of_out, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> Tuple[tuple, tuple]:
        tensors = _batches_in_front(info.batch_size, in_dims, *inputs[:4])
        grads = Gradient.apply(*tensors, *inputs[4:])
        return tuple(grad.unflatten(0, (info.batch_size, -1)) for grad in grads), (0, 0)


@fp32_under_autocast
def pairwise_kernel(
    metric: Metric, q: Tensor, k: Tensor, bandwidth: Union[float, Tensor], backend: str
) -> Tensor:
    """The long way of the public functions, see :func:`mmlaplace.ops.laplacian_kernel`."""
    _checks.check_query_key(metric.name, q, k)
    check_bandwidth(metric, bandwidth, q)
    compute = _native.select(metric.name, metric.reference, q.device, backend)
    if not _checks.is_recording():  # graphs take ops, whose derivative is their own
        compute = functools.partial(_apply, metric, compute)
    if not isinstance(bandwidth, Tensor):
        return compute(q, k, float(bandwidth))
    # K of (q, k; bandwidth) is K of (q / bandwidth, k / bandwidth; 1). Autograd knows the rest.
    query, key = upcast(q, k)
    bandwidth = bandwidth.to(query.dtype)
    return compute(query / bandwidth, key / bandwidth, 1.0).to(q.dtype)


def _apply(metric: Metric, compute: Callable, q: Tensor, k: Tensor, bandwidth: float) -> Tensor:
    return Kernel.apply(q, k, bandwidth, metric, compute)


def sum_over_channels(q: Tensor, k: Tensor, of_difference: Callable[[Tensor], Tensor]) -> Tensor:
    """``sum_c f(q_ic - k_jc)``, ``(B, heads, N, M)``, for graphs of standard operators.

    Channel by channel, as the differences of all channels at once would be N * M * d. Runtimes are
    faster along the many tokens than along the few landmarks, so these are the last axis until the
    end.
    """
    channels = q.shape[-1]
    rows = q.transpose(-2, -1).split([1] * channels, dim=-2)  # (B, heads, 1, N) each
    columns = k.split([1] * channels, dim=-1)  # (B, heads, M, 1) each
    total = of_difference(rows[0] - columns[0])
    for row, column in zip(rows[1:], columns[1:]):
        total = total + of_difference(row - column)
    return total.transpose(-2, -1)


def check_bandwidth(
    metric: Metric, bandwidth: Union[float, Tensor], q: Tensor, op: Optional[str] = None
) -> None:
    """Raise unless bandwidth is a number in range or a floating tensor for (B, heads, 1, 1).

    ``op`` is the name in the error. Default: that of the metric.
    """
    op = op or metric.name
    if isinstance(bandwidth, Tensor):
        _checks.check_floating(op, 'bandwidth', bandwidth)
        whole = (*q.shape[:2], 1, 1)
        if not _checks.broadcasts(bandwidth, whole):
            raise ValueError(
                f'{op}: a bandwidth that is a tensor must broadcast to (B, heads, 1, 1), here '
                f'{whole}, got shape {tuple(bandwidth.shape)}'
            )
        return
    if isinstance(bandwidth, bool) or not isinstance(bandwidth, (int, float)):
        raise TypeError(
            f'{op}: bandwidth must be a number or a floating tensor, got {bandwidth!r} of type '
            f'{type(bandwidth).__name__}'
        )
    _checks.check_positive(op, 'bandwidth', bandwidth)
    if bandwidth < metric.smallest_bandwidth:
        raise ValueError(
            f'{op}: bandwidth must be at least {metric.smallest_bandwidth:.3g}, below which the '
            f'exponent is infinite in fp32, got {bandwidth}'
        )


def _batches_in_front(size: int, in_dims: tuple, *tensors: Tensor) -> list:
    """Tensors whose first axis is that of vmap times B; one without that axis is expanded."""
    moved = (
        tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        for tensor, axis in zip(tensors, in_dims)
    )
    return [tensor.flatten(0, 1) for tensor in moved]


def _fake(metric: Metric, q: Tensor, k: Tensor, bandwidth: float) -> Tensor:
    metric.can_run(q, k, bandwidth)
    return q.new_empty((*q.shape[:3], k.shape[2]))


def _fake_gradient(
    metric: Metric, grad: Tensor, q: Tensor, k: Tensor, out: Tensor, bandwidth: float
) -> Tuple[Tensor, Tensor]:
    like = _fake(metric, q, k, bandwidth)
    _checks.check_like(metric.name, 'the gradient', grad, like)
    _checks.check_like(metric.name, 'out', out, like)
    return q.new_empty(q.shape), k.new_empty(k.shape)
