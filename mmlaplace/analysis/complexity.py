"""Count parameters and multiply-accumulates (MACs) of a model, the ops of mmlaplace included.

One MAC is one multiplication and one addition, so it is two FLOPs. In an L1 or L2 kernel, one MAC
is one difference that the sum takes up. Published tables count convolutions and linear layers
only. Therefore their MACs are counted apart from those of the attention kernels.
"""

import math
from typing import Any, Dict, NamedTuple, Optional, Sequence

import torch
import torch.nn as nn
from torch.utils.flop_counter import FlopCounterMode

from mmlaplace.ops import _native
from mmlaplace.ops.backend import ceil_div

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


def _cdist_macs(x: Sequence[int], y: Sequence[int]) -> int:
    return _product(x) * y[-2]


def _cholesky_macs(mat: Sequence[int]) -> int:
    return _product(mat) * mat[-1] // 6  # m^3 / 6


def _cholesky_inverse_macs(mat: Sequence[int]) -> int:
    return _product(mat) * mat[-1] // 2  # m^3 / 2 for a symmetric matrix, by any elimination


def _triangular_macs(mat: Sequence[int]) -> int:
    return _product(mat) * mat[-1] // 2  # m^3 / 2 for m right-hand sides


def _product(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())


def _attention_macs(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    return _product(query) * key[-2] + _product(query[:-1]) * key[-2] * value[-1]


def _newton_schulz_macs(mat: Sequence[int], num_iters: int) -> int:
    return 2 * num_iters * _product(mat) * mat[-1]  # the compiled op may stop earlier


def _start_scale_macs(mat: Sequence[int], halve: bool) -> int:
    return _product(mat) * mat[-1] if halve else 0  # the square of the matrix


def _nystrom_macs(
    query: Sequence[int], key: Sequence[int], landmarks: Sequence[int], eps: Optional[float]
) -> int:
    batch_heads, (marks, dims) = _product(query[:2]), landmarks[-2:]
    tokens = query[-2] + key[-2]
    macs = tokens * marks * dims + marks * marks * dims  # the two kernels
    if eps is not None:  # whitening: half of each symmetric product, and P^T Cov P
        macs += tokens * marks * dims + tokens * marks * (marks + 1) // 2 + 2 * marks**3
    else:  # SOFT: the keys are the queries, and papers count one kernel
        macs += query[-2] * marks * dims
    return batch_heads * macs


def _linear_macs(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], streams: int
) -> int:
    tokens = (query[-2] + key[-2]) * value[-1] + query[-2] * streams  # and the normalisers
    return _product(query[:2]) * tokens * query[-1]


def _fourier_macs(maps: Sequence[int], dim: Sequence[int]) -> int:
    # 5 N log2 N real FLOPs of a complex transform, as FFTW counts, and half of them of a real one.
    return round(1.25 * _product(maps) * math.log2(_product([maps[axis] for axis in dim])))


# FLOPs of the ops that FlopCounterMode does not know.
FLOP_FORMULAS = {
    aten._cdist_forward: lambda x, y, *_, **__: 2 * _cdist_macs(x, y),
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
    FLOP_FORMULAS[aten.matmul] = lambda x, y, *_, out_shape, **__: 2 * _product(out_shape) * x[-1]

for _name in ('laplacian_kernel', 'gaussian_kernel'):
    if _name in _native.AVAILABLE:
        FLOP_FORMULAS[getattr(torch.ops.mmlaplace, _name)] = lambda q, k, *_, **__: (
            2 * _cdist_macs(q, k)
        )
if 'nystrom_attention' in _native.AVAILABLE:

    def _nystrom_flops(
        q, k, v, landmarks, inverse, scale, rotary, kernel, bandwidth, whitening_eps, *_, **__
    ):
        return 2 * _nystrom_macs(q, k, landmarks, whitening_eps)

    FLOP_FORMULAS[torch.ops.mmlaplace.nystrom_attention] = _nystrom_flops
if 'linear_attention' in _native.AVAILABLE:

    def _linear_flops(q, k, v, top_q, top_k, eps, features, streams, **__):
        return 2 * _linear_macs(q, k, v, streams)

    FLOP_FORMULAS[torch.ops.mmlaplace.linear_attention] = _linear_flops
if '_landmark_attention' in _native.AVAILABLE:

    def _landmark_flops(
        q,
        k,
        v,
        gamma,
        rotary,
        form,
        height,
        width,
        rows,
        columns,
        ratio,
        kernel,
        bandwidth,
        ridge,
        whitening_eps,
        **__,
    ):
        marks = (
            rows * columns if ratio is None else ceil_div(height, ratio) * ceil_div(width, ratio)
        )
        landmarks, matrix = (*q[:2], marks, q[-1]), (*q[:2], marks, marks)
        macs = _cdist_macs(landmarks, landmarks) + _cholesky_inverse_macs(matrix)
        return 2 * (macs + _nystrom_macs(q, k, landmarks, whitening_eps))

    FLOP_FORMULAS[torch.ops.mmlaplace._landmark_attention] = _landmark_flops
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

    return {
        # mmengine counts no matrices of the second factor that the first has not.
        'aten::matmul': lambda inputs, outputs: (
            _product(shapes(outputs)[0]) * shapes(inputs)[0][-1]
        ),
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
        'mmlaplace::linear_attention': lambda inputs, outputs: _linear_macs(
            shapes(inputs)[0], shapes(inputs)[1], shapes(inputs)[2], inputs[7].toIValue()
        ),
        'mmlaplace::cholesky_inverse': lambda inputs, outputs: _cholesky_inverse_macs(
            shapes(inputs)[0]
        ),
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
