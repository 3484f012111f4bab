"""A row for each public op: how it is called, and how many MACs it takes. A new op is a new row.

``python -m mmlaplace check``, the counter of MACs, the tests of ops and the page of native ops read
it.
"""

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .laplacian_kernel import laplacian_kernel

Shape = Sequence[int]


class Op(NamedTuple):
    """A row of the table.

    Attributes:
        tensors: Makes tensors with a gradient for a call, in fp32 on a CPU, by their names in the
            public function.
        options: The further arguments of that call.
        macs: From the arguments of the compiled op, with shapes in the place of tensors, the
            multiply-accumulates. Default: none.
        compiled: From the arguments of the call, those of the compiled op. Default: the tensors,
            and then the options.
        reads_halves: Whether it reads fp16 and bf16 under autocast, in the place of tensors that
            are converted to fp32. Default: False.
        by_reference: For the page of native ops, the sizes that the reference computes. Default:
            none.
    """

    tensors: Callable[[], Dict[str, Tensor]]
    options: Dict[str, Any]
    macs: Optional[Callable[..., int]] = None
    compiled: Optional[Callable[..., Tuple]] = None
    reads_halves: bool = False
    by_reference: str = ''

    def compiled_arguments(self, **tensors: Tensor) -> Tuple:
        """The arguments of the compiled op for these tensors."""
        if self.compiled is not None:
            return self.compiled(**tensors, **self.options)
        return (*tensors.values(), *self.options.values())


def product(shape: Shape) -> int:
    """The number of values of a tensor with this shape."""
    return int(torch.Size(shape).numel())


def random_tokens() -> Dict[str, Tensor]:
    """Random queries ``(1, 2, 37, 8)`` and keys ``(1, 2, 5, 8)``."""
    # With a separate generator on the CPU, the numbers are the same on every device.
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(1, 2, count, 8, generator=generator) for count in (37, 5))
    return dict(q=queries, k=keys)


def random_spd() -> Dict[str, Tensor]:
    """Positive definite matrices ``(1, 2, 37, 37)`` with condition numbers below 20."""
    tokens = random_tokens()['q']
    return dict(mat=laplacian_kernel(tokens, tokens, 4.0, backend='reference'))


def random_attention() -> Dict[str, Tensor]:
    """Queries, keys and values ``(1, 2, 37, 8)``, landmarks ``(1, 2, 5, 8)`` and an inverse.

    The inverse ``(1, 2, 5, 5)`` is that of the landmarks' kernel.
    """
    landmarks = random_tokens()['k']
    kernel = laplacian_kernel(landmarks, landmarks, 4.0, backend='reference')
    return dict(random_features(), landmarks=landmarks, inverse=kernel.inverse())


def random_features() -> Dict[str, Tensor]:
    """Queries, keys and values ``(1, 2, 37, 8)``."""
    tokens = random_tokens()['q']
    return dict(q=tokens, k=tokens.flip(2), v=tokens.roll(1, 2))


def random_pairs() -> Dict[str, Tensor]:
    """Queries ``(1, 2, 37, 8)``, and keys and values that are others, as a kernel has a kink."""
    generator = torch.Generator().manual_seed(1)
    keys, values = torch.randn(2, 1, 2, 37, 8, generator=generator)
    return dict(q=random_tokens()['q'], k=keys, v=values)


def random_keys() -> Dict[str, Tensor]:
    """Keys ``(1, 2, 37, 8)``."""
    return dict(k=random_tokens()['q'])


def distance_macs(q: Shape, k: Shape, *_: Any) -> int:
    """In an L1 or L2 kernel, one MAC is one difference that the sum takes up."""
    return product(q) * k[-2]


def newton_schulz_macs(mat: Shape, num_iters: int, *_: Any) -> int:
    return 2 * num_iters * product(mat) * mat[-1]  # the compiled op may stop earlier


def inverse_macs(mat: Shape, *_: Any) -> int:
    return product(mat) * mat[-1] // 2  # m^3 / 2 for a symmetric matrix, by any elimination


def nystrom_macs(
    q: Shape,
    k: Shape,
    v: Shape,
    landmarks: Shape,
    inverse: Shape,
    scale: Shape,
    rotary: Optional[Shape],
    kernel: str,
    bandwidth: float,
    whitening_eps: Optional[float],
    *_: Any,
) -> int:
    count, dims = landmarks[-2:]
    tokens = q[-2] + k[-2]
    macs = tokens * count * dims + count * count * dims  # the two kernels
    if whitening_eps is not None:  # half of each symmetric product, and P^T Cov P
        macs += tokens * count * dims + tokens * count * (count + 1) // 2 + 2 * count**3
    else:  # SOFT: the keys are the queries, and papers count one kernel
        macs += q[-2] * count * dims
    return product(q[:2]) * macs  # in each head of each image


def normalized_nystrom_macs(q: Shape, k: Shape, v: Shape, landmarks: Shape, *_: Any) -> int:
    count, dims = landmarks[-2:]
    of_token = count * dims + count * (dims + 1)  # the kernel, and the values with their weights
    macs = (q[-2] + k[-2]) * of_token + count * count * (dims + 1)
    return product(q[:2]) * macs


def kernel_attention_macs(q: Shape, k: Shape, *_: Any) -> int:
    # The kernel, and the sums of values and of weights.
    return product(q[:3]) * k[-2] * (2 * q[-1] + 1)


def linear_macs(
    q: Shape,
    k: Shape,
    v: Shape,
    top_q: Optional[Shape],
    top_k: Optional[Shape],
    eps: float,
    features: str,
    streams: int,
    *_: Any,
) -> int:
    tokens = (q[-2] + k[-2]) * v[-1] + q[-2] * streams  # and the normalisers
    return product(q[:2]) * tokens * q[-1]


OPS = {
    'laplacian_kernel': Op(random_tokens, dict(bandwidth=4.0), distance_macs),
    'gaussian_kernel': Op(random_tokens, dict(bandwidth=2.0), distance_macs),
    'newton_schulz_inverse': Op(
        random_spd,
        dict(num_iters=20, ridge=1e-2),
        newton_schulz_macs,
        by_reference='CPU: m > 512; CUDA: m > 128, or in graphs 64',
    ),
    'cholesky_inverse': Op(
        random_spd, dict(ridge=1e-2), inverse_macs, by_reference='CPU: m > 512; CUDA: m > 64'
    ),
    'nystrom_attention': Op(
        random_attention,
        dict(bandwidth=4.0, whitening_eps=1e-5),
        nystrom_macs,
        compiled=lambda q, k, v, landmarks, inverse, bandwidth, whitening_eps: (
            *(q, k, v, landmarks, inverse, q.new_ones(q.shape[:2]), None),
            *('laplacian', bandwidth, whitening_eps, 'half'),
        ),
        reads_halves=True,
    ),
    'normalized_nystrom_attention': Op(
        random_attention,
        dict(bandwidth=4.0, floor=1e-6),
        normalized_nystrom_macs,
        compiled=lambda q, k, v, landmarks, inverse, bandwidth, floor: (
            *(q, k, v, landmarks, inverse, None),
            *('laplacian', bandwidth, floor, 'half'),
        ),
        reads_halves=True,
    ),
    'kernel_attention': Op(
        random_pairs,
        dict(bandwidth=4.0),
        kernel_attention_macs,
        compiled=lambda q, k, v, bandwidth: (q, k, v, None, 'laplacian', bandwidth, 'half'),
        reads_halves=True,
    ),
    'pooled_landmarks': Op(
        random_keys,
        dict(hw_shape=(1, 37), cells=(1, 5)),
        compiled=lambda k, hw_shape, cells: (k, None, 'half', *hw_shape, *cells, None),
        reads_halves=True,
    ),
    'linear_attention': Op(
        random_features,
        dict(features='elu_plus_one', streams=2),
        linear_macs,
        compiled=lambda q, k, v, features, streams: (q, k, v, None, None, 1e-6, features, streams),
        reads_halves=True,
        by_reference='CPU: unless asked; CUDA: f or d > 128',
    ),
}
