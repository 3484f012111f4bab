"""Compiles the peak of differences, which the benchmark of the ops measures kernels against."""

from pathlib import Path
from typing import Callable

import torch
from torch.utils import cpp_extension

FOLDER = Path(__file__).resolve().parent


def load(with_cuda: bool) -> Callable[[torch.Tensor, int], int]:
    """``difference_peak(like, steps)``, compiled into ``build/`` unless it is there already.

    It takes differences on all threads of the device of ``like``, a tensor of fp32, and returns
    how many.

    Args:
        with_cuda: Whether to compile for CUDA too; needs nvcc.

    Raises:
        RuntimeError: Without ninja, or if the sources do not compile; with the compiler's message.
        OSError: Without a CUDA toolkit where one is needed.
    """
    build = FOLDER.parent.parent / 'build' / ('benchmarks_cuda' if with_cuda else 'benchmarks')
    build.mkdir(parents=True, exist_ok=True)
    sources = ['difference_peak.cpp', 'difference_peak_cpu.cpp']
    if with_cuda:
        sources.append('difference_peak_cuda.cu')
    cpp_extension.load(
        name='mmlaplace_benchmarks',
        sources=[str(FOLDER / name) for name in sources],
        extra_cflags=['-O3', '-fopenmp', '-Wno-psabi'],
        extra_cuda_cflags=['-O3', '-DUSE_CUDA', '-DMMLAPLACE_WITH_CUDA'],
        build_directory=str(build),
        with_cuda=with_cuda,
        is_python_module=False,
    )
    return torch.ops.mmlaplace_benchmarks.difference_peak
