"""Count parameters and multiply-accumulates (MACs) of a model, the ops of mmlaplace included.

One MAC is one multiplication and one addition, so it is two FLOPs. In an L1 or L2 kernel, one MAC
is one difference that the sum takes up. Published tables count convolutions and linear layers
only. Therefore their MACs are counted apart from those of the attention kernels.
"""

import math
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

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
    count, dims = landmarks[-2:]
    tokens = query[-2] + key[-2]
    macs = tokens * count * dims + count * count * dims  # the two kernels
    if eps is not None:  # whitening: half of each symmetric product, and P^T Cov P
        macs += tokens * count * dims + tokens * count * (count + 1) // 2 + 2 * count**3
    else:  # SOFT: the keys are the queries, and papers count one kernel
        macs += query[-2] * count * dims
    return _product(query[:2]) * macs  # in each head of each image


def _normalized_nystrom_macs(
    query: Sequence[int], key: Sequence[int], landmarks: Sequence[int]
) -> int:
    count, dims = landmarks[-2:]
    of_token = count * dims + count * (dims + 1)  # the kernel, and the values with their weights
    macs = (query[-2] + key[-2]) * of_token + count * count * (dims + 1)
    return _product(query[:2]) * macs


def _linear_macs(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], streams: int
) -> int:
    tokens = (query[-2] + key[-2]) * value[-1] + query[-2] * streams  # and the normalisers
    return _product(query[:2]) * tokens * query[-1]


def _fourier_macs(maps: Sequence[int], dim: Sequence[int]) -> int:
    # 5 N log2 N real FLOPs of a complex transform, as FFTW counts, and half of them of a real one.
    return round(1.25 * _product(maps) * math.log2(_product([maps[axis] for axis in dim])))


# FLOPs by the arguments of an op, in which tensors are given by their shapes.


def _cdist_flops(x1, x2, *_, **__):
    return 2 * _cdist_macs(x1, x2)


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
    return 2 * _product(out_shape) * x[-1]


def _nystrom_flops(
    q, k, v, landmarks, inverse, scale, rotary, kernel, bandwidth, whitening_eps, *_, **__
):
    return 2 * _nystrom_macs(q, k, landmarks, whitening_eps)


def _normalized_nystrom_flops(q, k, v, landmarks, *_, **__):
    return 2 * _normalized_nystrom_macs(q, k, landmarks)


def _linear_flops(q, k, v, top_q, top_k, eps, features, streams, **__):
    return 2 * _linear_macs(q, k, v, streams)


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
    if ratio is not None:
        rows, columns = ceil_div(height, ratio), ceil_div(width, ratio)
    count = rows * columns
    landmarks = (*q[:2], count, q[-1])
    matrix = (*q[:2], count, count)
    macs = _cdist_macs(landmarks, landmarks) + _cholesky_inverse_macs(matrix)
    return 2 * (macs + _nystrom_macs(q, k, landmarks, whitening_eps))


def _pola_flops(q, power, shift, sums, *_, **__):
    return 2 * _product(q[:-1]) * _product(sums[-2:])


def _newton_schulz_flops(mat, num_iters, *_, **__):
    return 2 * _newton_schulz_macs(mat, num_iters)


def _start_scale_flops(mat, factor, halve, *_, **__):
    return 2 * _start_scale_macs(mat, halve)


def _cholesky_inverse_flops(mat, *_, **__):
    return 2 * _cholesky_inverse_macs(mat)


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

NATIVE_FORMULAS = {
    'laplacian_kernel': _cdist_flops,
    'gaussian_kernel': _cdist_flops,
    'nystrom_attention': _nystrom_flops,
    'normalized_nystrom_attention': _normalized_nystrom_flops,
    'linear_attention': _linear_flops,
    '_landmark_attention': _landmark_flops,
    '_pola_streams': _pola_flops,
    'newton_schulz_inverse': _newton_schulz_flops,
    '_newton_start_scale': _start_scale_flops,
    'cholesky_inverse': _cholesky_inverse_flops,
}
FLOP_FORMULAS.update(
    (getattr(torch.ops.mmlaplace, name), formula)
    for name, formula in NATIVE_FORMULAS.items()
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

    def handle(macs: Callable[..., int], *shapes: int, value: Optional[int] = None) -> Callable:
        """MACs by the shapes of these inputs, and by the value of another one."""

        def count(inputs: list, outputs: list) -> int:
            arguments = [inputs[i].type().sizes() for i in shapes]
            if value is not None:
                arguments.append(inputs[value].toIValue())
            return macs(*arguments)

        return count

    def axes(inputs: list) -> List[int]:
        return [axis.toIValue() for axis in inputs[2].node().inputs()]

    def matmul(inputs: list, outputs: list) -> int:
        # mmengine counts no matrices of the second factor that the first has not.
        return _product(outputs[0].type().sizes()) * inputs[0].type().sizes()[-1]

    def real_fourier(inputs: list, outputs: list) -> int:
        return _fourier_macs(inputs[0].type().sizes(), axes(inputs))

    def inverse_fourier(inputs: list, outputs: list) -> int:
        return _fourier_macs(outputs[0].type().sizes(), axes(inputs))

    return {
        'aten::matmul': matmul,
        'aten::cdist': handle(_cdist_macs, 0, 1),
        'mmlaplace::laplacian_kernel': handle(_cdist_macs, 0, 1),
        'mmlaplace::gaussian_kernel': handle(_cdist_macs, 0, 1),
        'mmlaplace::newton_schulz_inverse': handle(_newton_schulz_macs, 0, value=1),
        'mmlaplace::_newton_start_scale': handle(_start_scale_macs, 0, value=2),
        'mmlaplace::nystrom_attention': handle(_nystrom_macs, 0, 1, 3, value=9),
        'mmlaplace::normalized_nystrom_attention': handle(_normalized_nystrom_macs, 0, 1, 3),
        'mmlaplace::linear_attention': handle(_linear_macs, 0, 1, 2, value=7),
        'mmlaplace::cholesky_inverse': handle(_cholesky_inverse_macs, 0),
        'aten::linalg_cholesky_ex': handle(_cholesky_macs, 0),
        'aten::linalg_solve_triangular': handle(_triangular_macs, 0),
        'aten::fft_rfft2': real_fourier,
        'aten::fft_irfft2': inverse_fourier,
        'aten::scaled_dot_product_attention': handle(_attention_macs, 0, 1, 2),
    }
