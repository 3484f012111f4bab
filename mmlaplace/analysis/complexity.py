"""Parameters and multiply-accumulates (MACs) of a model, our ops included.

One MAC is one multiplication and one addition, so two FLOPs. An L1 or L2 kernel counts one MAC for
each difference that is taken and accumulated. Published tables count convolutions and linears
alone, so these are kept apart from the products of the attention kernels.
"""

from typing import Dict, NamedTuple, Optional, Sequence

import torch
import torch.nn as nn
from torch.utils.flop_counter import FlopCounterMode

from mmlaplace.ops import _native

from .recording import in_eval_mode

aten = torch.ops.aten
WEIGHT_OPS = ('convolution', 'addmm', 'mm')  # a linear is an addmm or mm, a kernel product a bmm


class Complexity(NamedTuple):
    """What a model weighs and costs, for one image.

    Attributes:
        parameters: Number of parameters.
        weight_macs: MACs of convolutions and linears, which common counters and papers report.
        kernel_macs: MACs of the attention: kernels, their products and inverses.
    """

    parameters: int
    weight_macs: int
    kernel_macs: int

    @property
    def macs(self) -> int:
        """All MACs."""
        return self.weight_macs + self.kernel_macs


def _cdist_macs(x: Sequence[int], y: Sequence[int]) -> int:
    return _product(x) * y[-2]


def _cholesky_macs(mat: Sequence[int]) -> int:
    return _product(mat) * mat[-1] // 6  # m^3 / 6 multiplications with their additions


def _cholesky_inverse_macs(mat: Sequence[int]) -> int:
    return _product(mat) * mat[-1] // 2  # of a symmetric matrix: m^3 / 2, by any elimination


def _triangular_macs(mat: Sequence[int]) -> int:
    return _product(mat) * mat[-1] // 2  # with as many right-hand sides


def _product(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())


def _attention_macs(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    return _product(query) * key[-2] + _product(query[:-1]) * key[-2] * value[-1]


def _newton_schulz_macs(mat: Sequence[int], num_iters: int) -> int:
    return 2 * num_iters * _product(mat) * mat[-1]  # the compiled op stops earlier where it can


def _start_scale_macs(mat: Sequence[int], halve: bool) -> int:
    return _product(mat) * mat[-1] if halve else 0  # its square


def _nystrom_macs(
    query: Sequence[int], key: Sequence[int], landmarks: Sequence[int], whitening: float
) -> int:
    batch_heads, (marks, dims) = _product(query[:2]), landmarks[-2:]
    tokens = query[-2] + key[-2]
    macs = tokens * marks * dims + marks * marks * dims  # products with the kernels
    if whitening >= 0:  # halves of symmetric products, and P^T Cov P
        macs += tokens * marks * dims + tokens * marks * (marks + 1) // 2 + 2 * marks**3
    else:  # in SOFT keys are the queries, and papers count one kernel
        macs += query[-2] * marks * dims
    return batch_heads * macs


# What the common counters do not know, for FlopCounterMode (which asks for FLOPs).
FLOP_FORMULAS = {
    aten._cdist_forward: lambda x, y, *_, **__: 2 * _cdist_macs(x, y),
    aten.linalg_cholesky_ex: lambda mat, *_, **__: 2 * _cholesky_macs(mat),
    aten.linalg_solve_triangular: lambda mat, *_, **__: 2 * _triangular_macs(mat),
}
if hasattr(aten, '_scaled_dot_product_flash_attention_for_cpu'):  # torch >= 2.2
    FLOP_FORMULAS[aten._scaled_dot_product_flash_attention_for_cpu] = (
        lambda query, key, value, *_, **__: 2 * _attention_macs(query, key, value)
    )

for _name in ('laplacian_kernel', 'gaussian_kernel'):
    if _name in _native.AVAILABLE:
        FLOP_FORMULAS[getattr(torch.ops.mmlaplace, _name)] = lambda q, k, *_, **__: (
            2 * _cdist_macs(q, k)
        )
if 'nystrom_attention' in _native.AVAILABLE:

    def _nystrom_flops(
        q, k, v, landmarks, inverse, scale, rotary, kernel, bandwidth, whitening, *_, **__
    ):
        return 2 * _nystrom_macs(q, k, landmarks, whitening)

    FLOP_FORMULAS[torch.ops.mmlaplace.nystrom_attention] = _nystrom_flops
if '_pola_streams' in _native.AVAILABLE:
    FLOP_FORMULAS[torch.ops.mmlaplace._pola_streams] = lambda q, power, shift, sums, *_, **__: (
        2 * _product(q[:-1]) * _product(sums[-2:])
    )
if 'newton_schulz_inverse' in _native.AVAILABLE:
    FLOP_FORMULAS[torch.ops.mmlaplace.newton_schulz_inverse] = lambda mat, num_iters, *_, **__: (
        2 * _newton_schulz_macs(mat, num_iters)
    )
if '_newton_start_scale' in _native.AVAILABLE:
    FLOP_FORMULAS[torch.ops.mmlaplace._newton_start_scale] = lambda mat, factor, halve, *_, **__: (
        2 * _start_scale_macs(mat, halve)
    )
if 'cholesky_inverse' in _native.AVAILABLE:
    FLOP_FORMULAS[torch.ops.mmlaplace.cholesky_inverse] = lambda mat, *_, **__: (
        2 * _cholesky_inverse_macs(mat)
    )


def count_complexity(
    model: nn.Module,
    image_shape: Sequence[int] = (3, 224, 224),
    inputs: Optional[torch.Tensor] = None,
) -> Complexity:
    """Count parameters and, in one forward pass on the model's device, MACs.

    Args:
        model: Any module that takes a batch of images, such as a backbone or a classifier.
        image_shape: ``(channels, height, width)``. Default: (3, 224, 224).
        inputs: What the model gets instead of an image, such as ids ``(1, rows, L)`` of tokens.
            Default: None, zeros of ``image_shape``.
    """
    parameters = list(model.parameters())
    if inputs is None:
        like = parameters[0]
        inputs = torch.zeros(1, *image_shape, device=like.device, dtype=like.dtype)
    counter = FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS)
    with in_eval_mode(model), counter, torch.no_grad():
        model(inputs)
    macs: Dict[str, int] = {}
    for op, flops in counter.get_flop_counts()['Global'].items():
        name = str(op).split('.')[-1]
        macs[name] = macs.get(name, 0) + int(flops) // 2
    weights = sum(macs.pop(name, 0) for name in WEIGHT_OPS)
    return Complexity(sum(p.numel() for p in parameters), weights, sum(macs.values()))


def mmengine_flop_handles() -> dict:
    """Handles that let mmengine's ``FlopAnalyzer`` count our ops, as it does MACs.

    Use: ``FlopAnalyzer(model, inputs).set_op_handle(**mmengine_flop_handles())``.
    """

    def shapes(values: list) -> list:
        return [value.type().sizes() for value in values if value.type().kind() == 'TensorType']

    return {
        'aten::cdist': lambda inputs, outputs: _cdist_macs(*shapes(inputs)[:2]),
        'mmlaplace::laplacian_kernel': lambda inputs, outputs: _cdist_macs(*shapes(inputs)[:2]),
        'mmlaplace::gaussian_kernel': lambda inputs, outputs: _cdist_macs(*shapes(inputs)[:2]),
        'mmlaplace::newton_schulz_inverse': lambda inputs, outputs: _newton_schulz_macs(
            shapes(inputs)[0], inputs[1].toIValue()
        ),
        'mmlaplace::_newton_start_scale': lambda inputs, outputs: _start_scale_macs(
            shapes(inputs)[0], inputs[2].toIValue()
        ),
        'mmlaplace::nystrom_attention': lambda inputs, outputs: _nystrom_macs(
            shapes(inputs)[0], shapes(inputs)[1], shapes(inputs)[3], inputs[9].toIValue()
        ),
        'mmlaplace::cholesky_inverse': lambda inputs, outputs: _cholesky_inverse_macs(
            shapes(inputs)[0]
        ),
        'aten::linalg_cholesky_ex': lambda inputs, outputs: _cholesky_macs(shapes(inputs)[0]),
        'aten::linalg_solve_triangular': lambda inputs, outputs: _triangular_macs(
            shapes(inputs)[0]
        ),
        'aten::scaled_dot_product_attention': lambda inputs, outputs: _attention_macs(
            *shapes(inputs)[:3]
        ),
    }
