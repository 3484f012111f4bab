"""What the tests of ops share."""

import torch


def results(function, tensors, upstream):
    """The output, and the gradients of all tensors, which are a list or have names."""
    named = dict(tensors if isinstance(tensors, dict) else enumerate(tensors))
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in named.items()}
    out = function(**leaves) if isinstance(tensors, dict) else function(*leaves.values())
    return (out.detach(), *torch.autograd.grad(out, [*leaves.values()], upstream.to(out.dtype)))


def assert_formula(op, formula, tensors, bounds, floor=1e-3):
    """Values and gradients are those of a formula in fp64.

    The bound of each dtype is relative to the largest value, or to ``floor`` if that is larger.
    """
    wide = [tensor.double() for tensor in tensors]
    upstream = torch.randn_like(formula(*wide)).to(tensors[0].dtype)
    found, truth = results(op, tensors, upstream), results(formula, wide, upstream)
    for got, right, like in zip(found, truth, (tensors[0], *tensors)):
        assert (got.dtype, got.shape) == (like.dtype, right.shape)
        assert (got - right).abs().max() <= bounds[got.dtype] * max(right.abs().max(), floor)
