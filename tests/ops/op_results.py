"""What the tests of ops share."""

import torch


def results(function, tensors, upstream):
    """The output, and the gradients of all tensors, which are a list or have names."""
    named = dict(tensors if isinstance(tensors, dict) else enumerate(tensors))
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in named.items()}
    out = function(**leaves) if isinstance(tensors, dict) else function(*leaves.values())
    return (out.detach(), *torch.autograd.grad(out, [*leaves.values()], upstream.to(out.dtype)))
