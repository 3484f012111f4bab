"""The cases that benchmark_ops.py times, and the implementations that compute them.

A new implementation is a new row.
"""

import ctypes
import importlib.util
import math
import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import Callable, List, Optional, Tuple

import torch
from torch import Tensor

from mmlaplace.analysis.measuring import bytes_of
from mmlaplace.models.layers.kernels import KERNELS as ATTENTION_KERNELS
from mmlaplace.ops import _native, cholesky_inverse, linear_attention, newton_schulz_inverse
from mmlaplace.ops.linear_attention import elu_plus_one

# Name of the op: the op, and a function that gives LaplacianAttention's scale for head dimension d.
KERNELS = {op.__name__: (op, scale_of) for op, scale_of in ATTENTION_KERNELS.values()}
KERNEL_SHAPES = ((16, 3136, 49, 32), (2, 16384, 256, 32), (16, 3136, 49, 64))
SWEEP_SHAPES = tuple((16, queries, 49, 32) for queries in (49, 196, 784, 3136, 12544))
INVERSE_SHAPES = ((64, 49), (64, 100), (16, 196))
LINEAR_SHAPES = ((16, 784, 64), (16, 3136, 32), (2, 16384, 64))
QUICK_KERNEL_SHAPES, QUICK_INVERSE_SHAPES = ((2, 40, 9, 8), (2, 80, 9, 8)), ((3, 9),)
QUICK_LINEAR_SHAPES = ((2, 40, 8),)
RIDGE = 1e-2


@dataclass
class Candidate:
    """An implementation of a case."""

    name: str
    forward: Callable[..., Tensor]  # takes the inputs of the case
    why_not: Optional[str] = None  # the reason why it cannot run here
    differentiable: bool = True


@dataclass
class Case:
    """An op, its inputs, and the implementations that compute it."""

    op: str
    shape: Tuple[int, ...]
    inputs: Tuple[Tensor, ...]
    result_bytes: int
    candidates: List[Candidate]
    note: str = ''

    @property
    def title(self) -> str:
        others = dict(newton_schulz_inverse='batch, m', linear_attention='B*heads, N, d')
        axes = others.get(self.op, 'B*heads, N, M, d')
        return f'{self.op}, ({axes}) = {self.shape}, {self.inputs[0].dtype}{self.note}'


def kernel_case(op: str, shape: tuple, device: torch.device, dtype: torch.dtype) -> Case:
    """The case of a kernel between random queries and keys.

    Args:
        op: ``'laplacian_kernel'`` or ``'gaussian_kernel'``.
        shape: Batch x heads, number of queries, number of keys and head dimension.
        device: Device of the inputs.
        dtype: Type of the inputs.
    """
    batch_heads, queries, keys, dims = shape
    q = torch.randn(1, batch_heads, queries, dims).to(device, dtype)
    k = torch.randn(1, batch_heads, keys, dims).to(device, dtype)
    kernel, scale_of = KERNELS[op]
    scale, on_cpu = scale_of(dims), device.type == 'cpu'
    halves = f'takes no {dtype}' if dtype in (torch.float16, torch.bfloat16) else None
    sklearn = halves or (missing('sklearn') if on_cpu else 'runs on CPUs only')
    native = _native.why_not(op, device.type)
    candidates = [
        Candidate('native', partial(kernel, bandwidth=scale, backend='native'), native),
        Candidate('reference', partial(kernel, bandwidth=scale, backend='reference')),
        Candidate('scikit-learn', partial(by_sklearn, op, scale), sklearn, differentiable=False),
        Candidate('KeOps, with values', partial(by_keops, op, scale), halves or missing('pykeops')),
        Candidate('q @ k.T, a lower bound', lambda q, k: q @ k.transpose(-2, -1)),
    ]
    if op == 'laplacian_kernel':
        by_cdist = lambda q, k: torch.exp(-torch.cdist(q, k, p=1) / scale)  # noqa: E731
        candidates.insert(2, Candidate('exp(-cdist / scale)', by_cdist, halves))
    if not on_cpu:
        attention = torch.nn.functional.scaled_dot_product_attention
        candidates.append(Candidate('softmax attention', lambda q, k: attention(q, k, k)))
    return Case(op, shape, (q, k), batch_heads * queries * keys * q.element_size(), candidates)


def missing(module: str) -> Optional[str]:
    """The reason why a module cannot be used, or None."""
    return None if importlib.util.find_spec(module) else f'{module} is not installed'


def by_sklearn(op: str, scale: float, q: Tensor, k: Tensor) -> Tensor:
    """Compute the kernel with scikit-learn, head by head."""
    import numpy as np
    from sklearn.metrics import pairwise

    if op == 'laplacian_kernel':
        kernel = partial(pairwise.laplacian_kernel, gamma=1 / scale)
    else:
        kernel = partial(pairwise.rbf_kernel, gamma=1 / (2 * scale**2))
    query, key = q[0].numpy(), k[0].numpy()
    out = np.empty((*query.shape[:2], key.shape[1]), query.dtype)
    for head in range(len(query)):
        out[head] = kernel(query[head], key[head])
    return torch.from_numpy(out)


def by_keops(op: str, scale: float, q: Tensor, k: Tensor) -> Tensor:
    """Compute the product of the kernel and k with KeOps, which never stores the kernel."""
    from pykeops.torch import LazyTensor

    difference = LazyTensor(q.unsqueeze(3)) - LazyTensor(k.unsqueeze(2))
    if op == 'laplacian_kernel':
        return (difference.abs().sum(-1) / -scale).exp() @ k
    return ((difference**2).sum(-1) / (-2 * scale**2)).exp() @ k


def inverse_case(shape: tuple, device: torch.device, dtype: torch.dtype) -> Case:
    """The case of the inverses of Laplacian kernels ``(batch, m, m)`` of landmarks.

    The landmarks come in groups of seven near-duplicates, so that the kernels are ill-conditioned.

    Args:
        shape: Batch size and number of landmarks m.
        device: Device of the kernels.
        dtype: Type of the kernels.
    """
    batch, size = shape
    centers = 0.3 * torch.randn(batch, math.ceil(size / 7), 1, 32)
    landmarks = centers + 0.01 * torch.randn(*centers.shape[:2], 7, 32)
    landmarks = landmarks.flatten(1, 2)[:, :size]
    mat = torch.exp(-torch.cdist(landmarks, landmarks, p=1) / 4)
    eigenvalues = torch.linalg.eigvalsh(mat.double()) + RIDGE
    note = f', condition {(eigenvalues[:, -1] / eigenvalues[:, 0]).median():.0f}'
    mat = mat.to(device, dtype)
    ridge = RIDGE * torch.eye(size, device=device, dtype=dtype)
    newton_schulz = partial(newton_schulz_inverse, num_iters=20, ridge=RIDGE)
    native = _native.why_not('newton_schulz_inverse', device.type)
    candidates = [
        Candidate('native', partial(newton_schulz, backend='native'), native),
        Candidate('reference', partial(newton_schulz, backend='reference')),
        Candidate('cholesky_inverse', partial(cholesky_inverse, ridge=RIDGE)),
        Candidate('linalg.inv', lambda m: torch.linalg.inv(m + ridge), lu_failure(mat + ridge)),
    ]
    return Case('newton_schulz_inverse', shape, (mat,), bytes_of((mat,)), candidates, note)


def linear_case(shape: tuple, device: torch.device, dtype: torch.dtype) -> Case:
    """The case of linear attention with the features elu + 1, and of softmax attention beside it.

    Args:
        shape: Batch x heads, number of tokens and head dimension.
        device: Device of the tokens.
        dtype: Type of the tokens.
    """
    batch_heads, tokens, dims = shape
    inputs = tuple(torch.randn(1, batch_heads, tokens, dims).to(device, dtype) for _ in range(3))
    linear = partial(linear_attention, features='elu_plus_one')
    native = _native.why_not('linear_attention', device.type)
    triton = 'runs on GPUs only' if device.type == 'cpu' else missing('fbi_la')
    candidates = [
        Candidate('native', partial(linear, backend='native'), native),
        Candidate('reference', partial(linear, backend='reference')),
        Candidate('fbi_la, Triton', by_fbi_la, triton),
        Candidate('softmax attention', torch.nn.functional.scaled_dot_product_attention),
    ]
    return Case('linear_attention', shape, inputs, bytes_of(inputs[:1]), candidates)


def by_fbi_la(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by https://github.com/hp-l33/flash-bidirectional-linear-attention (MIT)."""
    from fbi_la.ops.linear_attn.attention import linear_attention as by_triton

    return by_triton(elu_plus_one(q), elu_plus_one(k), v)


def lu_failure(mat: Tensor) -> Optional[str]:
    """The message if the LU inverse fails, or None.

    It fails in some builds of oneMKL, for batches of large matrices.
    """
    sys.stdout.flush()
    stdout, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # oneMKL prints hundreds of lines from C, past sys.stdout
    try:
        torch.linalg.inv(mat)
    except RuntimeError as error:  # torch.linalg.LinAlgError is one
        return str(error).splitlines()[0]
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)
    return None
