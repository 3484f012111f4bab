"""The derivatives of compiled attentions, and their rules of vmap."""

from typing import Any, Callable, Optional, Tuple, Type

import torch
from torch import Tensor

from . import _native


def attention_functions(
    op: str, reference: Callable[..., Tensor], num_tensors: int, num_kept: int
) -> Tuple[Type[_native.Function], Type[_native.Function]]:
    """A compiled attention as a function of autograd, and the function of its gradients.

    Args:
        op: Name of the compiled op. That of its gradients is ``_{op}_backward``: it takes the
            gradient of the result, the tensors, what the op has kept, and the constants.
        reference: The specification, of the same inputs.
        num_tensors: How many inputs are tensors. They come first, and the last of them is the
            rotary table, which has no gradient. The others are constants.
        num_kept: How many outputs the op has after its result, which it keeps for the gradients.
    """

    class Attention(_native.Function):
        """The compiled op, which keeps its tensors and some outputs for the backward."""

        @staticmethod
        def forward(*inputs: Any) -> Tuple[Tensor, ...]:
            with _native.below_autograd():
                return _native.compiled(op)(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
            ctx.mark_non_differentiable(*output[1:])
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*inputs[:num_tensors], *output[1:])
            ctx.constants = inputs[num_tensors:]

        @staticmethod
        def backward(ctx: Any, grad: Optional[Tensor], *_: Any) -> tuple:
            without = len(ctx.constants) + 1  # these, and the rotary table
            if grad is None:
                return (None,) * (num_tensors - 1 + without)
            grads = AttentionGradient.apply(grad, *ctx.saved_tensors, *ctx.constants)
            return (*grads, *(None,) * without)

        @staticmethod
        def vmap(info: Any, in_dims: tuple, *inputs: Any) -> Tuple[tuple, tuple]:
            joined = joined_batches(info.batch_size, in_dims, inputs, rotary=num_tensors - 1)
            return batches_apart(info.batch_size, Attention.apply(*joined))

    class AttentionGradient(_native.Function):
        """The gradients of the op. Second derivatives are those of the specification."""

        @staticmethod
        def forward(*inputs: Any) -> Tuple[Tensor, ...]:
            with _native.below_autograd():
                return _native.compiled(f'_{op}_backward')(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
            ctx.save_for_backward(*inputs[: 1 + num_tensors])
            ctx.constants = inputs[1 + num_tensors + num_kept :]

        @staticmethod
        def backward(ctx: Any, *changes: Any) -> tuple:
            grad, *tensors, rotary = ctx.saved_tensors

            def gradients(grad: Tensor, *tensors: Tensor) -> tuple:
                def attention(*tensors: Tensor) -> Tensor:
                    return reference(*tensors, rotary, *ctx.constants)

                return torch.func.vjp(attention, *tensors)[1](grad)

            found = torch.func.vjp(gradients, grad, *tensors)[1](changes)
            return (*found, *(None,) * (1 + num_kept + len(ctx.constants)))

        @staticmethod
        def vmap(info: Any, in_dims: tuple, *inputs: Any) -> Tuple[tuple, tuple]:
            joined = joined_batches(info.batch_size, in_dims, inputs, rotary=num_tensors)
            return batches_apart(info.batch_size, AttentionGradient.apply(*joined))

    return Attention, AttentionGradient


def joined_batches(size: int, in_dims: tuple, inputs: tuple, rotary: int) -> list:
    """Inputs with the axes of vmap and of the batch joined. The rotary table has neither axis."""
    joined = []
    for index, (value, axis) in enumerate(zip(inputs, in_dims)):
        if isinstance(value, Tensor) and index != rotary:
            value = value.expand(size, *value.shape) if axis is None else value.movedim(axis, 0)
            value = value.flatten(0, 1)
        joined.append(value)
    return joined


def batches_apart(size: int, outputs: tuple) -> Tuple[tuple, tuple]:
    """The opposite of :func:`joined_batches` for outputs, and their axes of vmap."""
    return tuple(out.unflatten(0, (size, -1)) for out in outputs), (0,) * len(outputs)
