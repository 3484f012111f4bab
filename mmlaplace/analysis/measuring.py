"""Measure the time and memory of jobs, and describe the machine."""

import ctypes
import os
import platform
import random
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

import torch
from torch import Tensor

from ..ops import _native

BUDGET = 3.0  # seconds for each job
# Variables that change how the C library gives memory, and with it how often pages are cleared.
MEMORY_SETTINGS = ('GLIBC_TUNABLES', 'LD_PRELOAD')


def model_job(
    model: torch.nn.Module,
    image: Tensor,
    train: bool,
    dtype: Optional[torch.dtype] = None,
) -> Callable[[], Tuple[Tensor, ...]]:
    """A function that runs one pass of a model.

    Args:
        model: The model.
        image: Its input, such as ``(B, 3, H, W)``.
        train: Whether the pass has a backward pass too, with the gradients of all weights. It frees
            them at its end.
        dtype: Type of autocast in the forward pass. Default: None, no autocast.

    Returns:
        The function. It returns the tensors that the model gives, or ``()`` if ``train``.
    """

    def outputs() -> Tuple[Tensor, ...]:
        with nullcontext() if dtype is None else torch.autocast(image.device.type, dtype):
            return tensors_of(model(image))

    def forward() -> Tuple[Tensor, ...]:
        with torch.no_grad():
            return outputs()

    def forward_backward() -> Tuple[Tensor, ...]:
        loss: Any = sum(out.mean() for out in outputs())
        loss.backward()
        model.zero_grad(set_to_none=True)  # or the next pass would begin with these gradients
        return ()

    return forward_backward if train else forward


def tensors_of(output: Any) -> Tuple[Tensor, ...]:
    """All tensors of a model's output, which is a tensor, or nested lists and tuples of tensors."""
    if isinstance(output, Tensor):
        return (output,)
    return tuple(tensor for part in output for tensor in tensors_of(part))


def seconds_of(
    job: Callable, device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of one run of a job, on a CPU by ``clock``, on a GPU by CUDA events.

    Raises:
        ValueError: For a device of another type.
    """
    if device.type not in ('cpu', 'cuda'):
        raise ValueError(f"device must be 'cpu' or 'cuda' to be timed, got {str(device)!r}")
    if device.type == 'cpu':
        began = clock()
        _kept = job()  # freed only after the clock has stopped
        return clock() - began
    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    _kept = job()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3


def interleave(
    jobs: Dict[Hashable, Callable],
    rounds: int,
    device: torch.device,
    budget: float = BUDGET,
    timer: Optional[Callable] = None,
) -> Dict[Hashable, List[float]]:
    """Time jobs in interleaved rounds, so that a change of the machine's speed meets all of them.

    Args:
        jobs: Functions to run, by name.
        rounds: Runs of each job. In each round, the jobs run in random order.
        device: Device of the jobs.
        budget: Seconds for each job. A job that would take longer runs in fewer rounds, at least
            three, evenly spread. Default: 3.0.
        timer: Function of a job and the device that returns seconds. Default: None, for
            :func:`seconds_of`.

    Returns:
        The seconds of every run, by the name of the job.
    """
    timer = timer or seconds_of
    turns = {}
    for name, job in jobs.items():
        job()
        once = max(timer(job, device), 1e-9)  # a coarse clock can read zero
        turns[name] = min(rounds, max(3, int(budget / once)))
    seconds: Dict[Hashable, List[float]] = {name: [] for name in jobs}
    order = random.Random(0)
    for index in range(rounds):
        for name in order.sample(list(jobs), len(jobs)):
            if index * turns[name] % rounds < turns[name]:
                seconds[name].append(timer(jobs[name], device))
    return seconds


def bytes_of(tensors: tuple) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def tensor_memory(job: Callable, device: torch.device) -> Optional[int]:
    """Peak of the bytes that torch allocates in a job, without the tensors that it returns.

    On a CPU, the result is None if the profiler saw fewer bytes than the job returns.
    """
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        output = job()
        return torch.cuda.max_memory_allocated() - before - bytes_of(output)
    if not torch.cuda.is_available():  # the profiler would print an error that it finds no GPU
        os.environ.setdefault('KINETO_LOG_LEVEL', '5')
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        output = job()
    live, peak = 0, 0
    for event in profiler.kineto_results.events():
        if event.name() == '[memory]':
            live += event.nbytes()
            peak = max(peak, live)
    return peak - bytes_of(output) if peak >= bytes_of(output) else None


def process_memory(job: Callable) -> Optional[int]:
    """Growth of the process's peak resident memory in a job, without the tensors that it returns.

    The result is in bytes. It is None on systems other than Linux.
    """

    def status(key: str) -> int:
        lines = Path('/proc/self/status').read_text(encoding='utf-8').splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)  # or the job would reuse freed memory
        Path('/proc/self/clear_refs').write_text('5')  # resets the peak to the resident memory
    except (OSError, AttributeError):  # not Linux
        return None
    before = status('VmRSS')
    output = job()
    return max(0, status('VmHWM') - before - bytes_of(output))


def describe_machine(device: torch.device) -> Dict[str, str]:
    """What figures depend on: processor, threads, torch, and what the user set for memory."""
    info = Path('/proc/cpuinfo')
    lines = info.read_text(encoding='utf-8').splitlines() if info.is_file() else []
    names = [line.split(':')[1].strip() for line in lines if line.startswith('model name')]
    machine = {
        'CPU': names[0] if names else platform.processor() or platform.machine(),
        'threads': str(torch.get_num_threads()),
        'vector instructions': torch.backends.cpu.get_cpu_capability(),
        'torch': torch.__version__,
        'native library': _native.WHY_MISSING or 'loaded',
    }
    machine.update({name: os.environ[name] for name in MEMORY_SETTINGS if os.environ.get(name)})
    if device.type == 'cuda':
        machine['GPU'] = torch.cuda.get_device_name()
    return machine
