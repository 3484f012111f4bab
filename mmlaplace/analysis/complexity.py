"""Count parameters and multiply-accumulates (MACs) of a model, the ops of mmlaplace included.

One MAC is one multiplication and one addition, so it is two FLOPs. In an L1 or L2 kernel, one MAC
is one difference that the sum takes up. Published tables count convolutions and linear layers
only. Therefore their MACs are counted apart from those of the attention kernels.
"""

import math
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence

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
    marks = (rows or 0) * (columns or 0)
    landmarks, matrix = (*q[:2], marks, q[-1]), (*q[:2], marks, marks)
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


# MACs of our ops by their names: of the public ones, and of those that parts of attentions are.
MACS: Dict[str, Callable[..., int]] = {
    **{name: op.macs for name, op in OPS.items() if op.macs is not None},
    '_landmark_attention': _landmark_macs,
    '_newton_start_scale': _start_scale_macs,
    '_pola_streams': _streams_macs,
}
# FLOPs of the ops that FlopCounterMode does not know.
FLOP_FORMULAS = {
    aten._cdist_forward: lambda x, y, *_, **__: 2 * distance_macs(x, y),
    aten.linalg_cholesky_ex: lambda mat, *_, **__: 2 * _cholesky_macs(mat),
    aten.linalg_solve_triangular: lambda mat, *_, **__: 2 * _triangular_macs(mat),
    aten._fft_r2c: lambda maps, dim, *_, **__: 2 * _fourier_macs(maps, dim),
    aten._fft_c2r: lambda waves, dim, *_, out_shape, **__: 2 * _fourier_macs(out_shape, dim),
}
if hasattr(aten, '_scaled_dot_product_flash_attention_for_cpu'):  # torch >= 2.2
    FLOP_FORMULAS[aten._scaled_dot_product_flash_attention_for_cpu] = (
        lambda query, key, value, *_, **__: 2 * _attention_macs(query, key, value)
    )
else:  # whose counter does not look into cdist and matmul, as newer ones do
    FLOP_FORMULAS[aten.cdist] = FLOP_FORMULAS[aten._cdist_forward]
    FLOP_FORMULAS[aten.matmul] = lambda x, y, *_, out_shape, **__: 2 * product(out_shape) * x[-1]


def _flops_of(macs: Callable[..., int]) -> Callable[..., int]:
    """The FLOPs of one of our ops. FlopCounterMode also gives its results, by their names."""
    return lambda *arguments, **_: 2 * macs(*arguments)


for _name in MACS.keys() & _native.AVAILABLE.keys():
    FLOP_FORMULAS[getattr(torch.ops.mmlaplace, _name)] = _flops_of(MACS[_name])


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

    def shapes(values: list) -> list:
        return [value.type().sizes() for value in values if value.type().kind() == 'TensorType']

    def numbers(value: Any) -> list:
        return [number.toIValue() for number in value.node().inputs()]

    def argument(value: Any) -> Any:
        """The shape of a tensor, or another value."""
        is_tensor = value.type().kind() == 'TensorType'
        return value.type().sizes() if is_tensor else value.toIValue()

    def handle(macs: Callable[..., int]) -> Callable[[list, list], int]:
        return lambda inputs, outputs: macs(*map(argument, inputs))

    return {
        # mmengine counts no matrices of the second factor that the first has not.
        'aten::matmul': lambda inputs, outputs: product(shapes(outputs)[0]) * shapes(inputs)[0][-1],
        'aten::cdist': lambda inputs, outputs: distance_macs(*shapes(inputs)[:2]),
        **{f'mmlaplace::{name}': handle(macs) for name, macs in MACS.items()},
        'aten::linalg_cholesky_ex': lambda inputs, outputs: _cholesky_macs(shapes(inputs)[0]),
        'aten::linalg_solve_triangular': lambda inputs, outputs: _triangular_macs(
            shapes(inputs)[0]
        ),
        'aten::fft_rfft2': lambda inputs, outputs: _fourier_macs(
            shapes(inputs)[0], numbers(inputs[2])
        ),
        'aten::fft_irfft2': lambda inputs, outputs: _fourier_macs(
            shapes(outputs)[0], numbers(inputs[2])
        ),
        'aten::scaled_dot_product_attention': lambda inputs, outputs: _attention_macs(
            *shapes(inputs)[:3]
        ),
    }
