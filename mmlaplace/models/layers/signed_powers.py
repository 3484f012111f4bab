from typing import Any, Tuple

import torch
from torch import Tensor

from mmlaplace.ops import signed_powers as native
from mmlaplace.ops._checks import is_compiling
from mmlaplace.ops.backend import exporting


def signed_powers(x: Tensor, power: Tensor, scale: Tensor) -> Tensor:
    r"""Positive and negative parts of scaled channels to their powers.

    .. math:: [\mathrm{relu}(x / s)^p, \mathrm{relu}(-x / s)^p]

    One exponential gives both parts, as one of them is zero:
    :math:`|x / s|^p = \exp(p \log |x| - p \log s)`. There are derivatives of any order,
    but none in forward mode. At ``x = 0`` they are zero.

    Args:
        x: ``(B, heads, N, d)`` in fp32 or fp64.
        power: p > 0 of each channel, ``(heads, 1, d)``, in the dtype of ``x``.
        scale: s > 0 of each channel, ``(heads, 1, d)``, in the dtype of ``x``.

    Returns:
        ``(B, heads, N, 2d)``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import signed_powers
        >>> x = torch.tensor([3.0, -4.0]).view(1, 1, 1, 2)  # (B, heads, N, d)
        >>> signed_powers(x, torch.full((1, 1, 2), 2.0), torch.ones(1, 1, 2)).round(decimals=3)
        tensor([[[[ 9.,  0.,  0., 16.]]]])
    """
    if exporting():  # such graphs have no Function, and runtimes take long for powers
        exponent = magnitude(x).log() * (power - 1) + shift_of(power, scale)
        signed = exponent.exp() * x
        return torch.cat([signed.relu(), (-signed).relu()], dim=-1)
    if native.fits_graph(x):
        return torch.ops.mmlaplace._signed_powers(x, power, shift_of(power, scale))
    return SignedPowers.apply(x, power, shift_of(power, scale))


def shift_of(power: Tensor, scale: Tensor) -> Tensor:
    """The shift that is added to the exponent ``power * log|x|`` of a power of ``x / scale``."""
    return -power * scale.log()


class SignedPowers(torch.autograd.Function):
    """Positive and negative part of ``sign(x) * exp(power * log|x| + shift)``.

    With autograd's own derivatives, forward and backward take four times as long on a CPU. The
    compiled op takes at most a third of the time of this class.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, power: Tensor, shift: Tensor) -> Tensor:
        if native.fits(x):
            return native.signed_powers(x, power, shift)
        # In place, as fresh memory takes a CPU longer than the values. A zero has the logarithm
        # -inf, and so the power 0.
        signed = x.abs().log_().mul_(power).add_(shift).exp_().copysign_(x)
        if is_compiling():  # torch 2.11 gives an output that was changed in place wrong derivatives
            return torch.cat([signed, -signed], dim=-1).clamp_min(0)
        parts = torch.cat([signed, signed], dim=-1)
        parts[..., x.shape[-1] :].neg_()
        return parts.clamp_min_(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        x, power, shift, output = ctx.saved_tensors
        if native.fits(x) and not torch.is_grad_enabled():  # second derivatives need a graph
            return native.signed_powers_backward(grad, x, power, shift)
        positive, negative = (grad * output).chunk(2, dim=-1)
        grad_exponent = positive + negative
        size = magnitude(x)
        grad_x = grad_exponent * power / torch.copysign(size, x)
        grad_power = (grad_exponent * size.log()).sum_to_size(power.shape)
        return grad_x, grad_power, grad_exponent.sum_to_size(shift.shape)


def magnitude(x: Tensor) -> Tensor:
    """``|x|``, but at least the root of the smallest normal number, 1.1e-19 in fp32.

    So the logarithm is finite, and a power of zero divided by this magnitude is zero.
    """
    return x.abs().clamp_min_(torch.finfo(x.dtype).tiny ** 0.5)
