"""Count parameters and multiply-accumulates (MACs) of a model, the ops of mmlaplace included.

One MAC is one multiplication and one addition, so it is two FLOPs. In an L1 or L2 kernel, one MAC
is one difference that the sum takes up. Published tables count convolutions and linear layers
only. Therefore their MACs are counted apart from those of the attention kernels.
"""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import torch
import torch.nn as nn
from torch.utils.flop_counter import FlopCounterMode

from mmlaplace.ops import _native
from mmlaplace.ops.backend import ceil_div
from mmlaplace.ops.table import OPS, distance_macs, inverse_macs, nystrom_macs, product

from .recording import in_eval_mode

aten = torch.ops.aten
# A linear layer is an addmm or mm. Products of attention kernels are a bmm.
WEIGHT_OPS = ('convolution', 'addmm', 'mm')


class Complexity(NamedTuple):
    """The parameters of a model, and its MACs for one image.

    Attributes:
        parameters: Number of parameters.
        weight_macs: MACs of convolutions and linear layers. Common counters and papers report
            these.
        kernel_macs: MACs of the attention: its kernels, their products and their inverses.
    """

    parameters: int
    weight_macs: int
    kernel_macs: int

    @property
    def macs(self) -> int:
        """The sum of ``weight_macs`` and ``kernel_macs``."""
        return self.weight_macs + self.kernel_macs


def _cholesky_macs(mat: Sequence[int]) -> int:
    return product(mat) * mat[-1] // 6  # m^3 / 6


def _triangular_macs(mat: Sequence[int]) -> int:
    return product(mat) * mat[-1] // 2  # m^3 / 2 for m right-hand sides


def _attention_macs(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    return product(query) * key[-2] + product(query[:-1]) * key[-2] * value[-1]


def _start_scale_macs(mat: Sequence[int], factor: float, halve: bool, per_batch: bool) -> int:
    return product(mat) * mat[-1] if halve else 0  # the square of the matrix


def _landmark_macs(
    q: Sequence[int],
    k: Sequence[int],
    v: Sequence[int],
    gamma: Optional[Sequence[int]],
    rotary: Optional[Sequence[int]],
    form: str,
    height: int,
    width: int,
    rows: Optional[int],
    columns: Optional[int],
    ratio: Optional[int],
    kernel: str,
    bandwidth: float,
    ridge: float,
    whitening_eps: Optional[float],
) -> int:
    if ratio is not None:
        rows, columns = ceil_div(height, ratio), ceil_div(width, ratio)
    count = (rows or 0) * (columns or 0)
    landmarks, matrix = (*q[:2], count, q[-1]), (*q[:2], count, count)
    macs = distance_macs(landmarks, landmarks) + inverse_macs(matrix)
    attention = (matrix, q[:2], rotary, kernel, bandwidth, whitening_eps)
    return macs + nystrom_macs(q, k, v, landmarks, *attention)


def _streams_macs(
    q: Sequence[int], power: Sequence[int], shift: Sequence[int], sums: Sequence[int], eps: float
) -> int:
    return product(q[:-1]) * product(sums[-2:])


def _fourier_macs(maps: Sequence[int], dim: Sequence[int]) -> int:
    # 5 N log2 N real FLOPs of a complex transform, as FFTW counts, and half of them of a real one.
    return round(1.25 * product(maps) * math.log2(product([maps[axis] for axis in dim])))


# FLOPs by the arguments of an op, in which tensors are given by their shapes.


def _cdist_flops(x1, x2, *_, **__):
    return 2 * distance_macs(x1, x2)


def _cholesky_flops(mat, *_, **__):
    return 2 * _cholesky_macs(mat)


def _triangular_flops(mat, *_, **__):
    return 2 * _triangular_macs(mat)


def _real_fourier_flops(maps, dim, *_, **__):
    return 2 * _fourier_macs(maps, dim)


def _inverse_fourier_flops(waves, dim, *_, out_shape, **__):
    return 2 * _fourier_macs(out_shape, dim)


def _attention_flops(query, key, value, *_, **__):
    return 2 * _attention_macs(query, key, value)


def _matmul_flops(x, y, *_, out_shape, **__):
    return 2 * product(out_shape) * x[-1]


def _flops_of(macs: Callable[..., int]) -> Callable[..., int]:
    """FLOPs of one of our ops by its MACs. The counter also gives its results, by their names."""

    def flops(*arguments, **_):
        return 2 * macs(*arguments)

    return flops


# Those of the ops that FlopCounterMode does not know.
FLOP_FORMULAS = {
    aten._cdist_forward: _cdist_flops,
    aten.linalg_cholesky_ex: _cholesky_flops,
    aten.linalg_solve_triangular: _triangular_flops,
    aten._fft_r2c: _real_fourier_flops,
    aten._fft_c2r: _inverse_fourier_flops,
}
if hasattr(aten, '_scaled_dot_product_flash_attention_for_cpu'):  # torch >= 2.2
    FLOP_FORMULAS[aten._scaled_dot_product_flash_attention_for_cpu] = _attention_flops
else:  # whose counter does not look into cdist and matmul, as newer ones do
    FLOP_FORMULAS[aten.cdist] = _cdist_flops
    FLOP_FORMULAS[aten.matmul] = _matmul_flops

# MACs of our ops by their names: of the public ones, and of those that parts of attentions are.
MACS: Dict[str, Callable[..., int]] = {
    **{name: op.macs for name, op in OPS.items() if op.macs is not None},
    '_landmark_attention': _landmark_macs,
    '_newton_start_scale': _start_scale_macs,
    '_pola_streams': _streams_macs,
}
FLOP_FORMULAS.update(
    (getattr(torch.ops.mmlaplace, name), _flops_of(macs))
    for name, macs in MACS.items()
    if name in _native.AVAILABLE
)


def count_complexity(
    model: nn.Module,
    image_shape: Sequence[int] = (3, 224, 224),
    inputs: Optional[torch.Tensor] = None,
) -> Complexity:
    """Count the parameters of a model, and its MACs in one forward pass on its device.

    Args:
        model: Any module that takes a batch of images, such as a backbone or a classifier.
        image_shape: ``(channels, height, width)`` of the image. Default: (3, 224, 224).
        inputs: An input instead of the image, such as token ids ``(1, rows, L)``. Default: None,
            an image of zeros in ``image_shape``.

    Examples:
        >>> from mmlaplace.analysis.complexity import count_complexity
        >>> from mmlaplace.models import LaplacianFormer
        >>> found = count_complexity(LaplacianFormer(arch='tiny'))
        >>> f'{found.parameters / 1e6:.1f} M parameters, {found.weight_macs / 1e9:.1f} G MACs'
        '11.5 M parameters, 2.1 G MACs'
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
    """Handles with which mmengine's ``FlopAnalyzer`` counts the ops of mmlaplace.

    The handles count MACs, as ``FlopAnalyzer`` itself does. Give them by
    ``FlopAnalyzer(model, inputs).set_op_handle(**mmengine_flop_handles())``.
    """

    def argument(value: Any) -> Any:
        """The shape of a tensor, or another value."""
        is_tensor = value.type().kind() == 'TensorType'
        return value.type().sizes() if is_tensor else value.toIValue()

    def handle(macs: Callable[..., int], count: Optional[int] = None) -> Callable:
        """MACs by the arguments of an op, or by the first of them."""
        return lambda inputs, outputs: macs(*map(argument, inputs[:count]))

    def axes(inputs: list) -> List[int]:
        return [axis.toIValue() for axis in inputs[2].node().inputs()]

    def matmul(inputs: list, outputs: list) -> int:
        # mmengine counts no matrices of the second factor that the first has not.
        return product(outputs[0].type().sizes()) * inputs[0].type().sizes()[-1]

    def real_fourier(inputs: list, outputs: list) -> int:
        return _fourier_macs(inputs[0].type().sizes(), axes(inputs))

    def inverse_fourier(inputs: list, outputs: list) -> int:
        return _fourier_macs(outputs[0].type().sizes(), axes(inputs))

    return {
        'aten::matmul': matmul,
        'aten::cdist': handle(distance_macs, 2),
        **{f'mmlaplace::{name}': handle(macs) for name, macs in MACS.items()},
        'aten::linalg_cholesky_ex': handle(_cholesky_macs, 1),
        'aten::linalg_solve_triangular': handle(_triangular_macs, 1),
        'aten::fft_rfft2': real_fourier,
        'aten::fft_irfft2': inverse_fourier,
        'aten::scaled_dot_product_attention': handle(_attention_macs, 3),
    }
