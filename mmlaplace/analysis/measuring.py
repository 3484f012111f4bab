"""Measure: times in interleaved rounds, memory, and what the machine is."""

import ctypes
import platform
import random
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

import torch
from torch import Tensor

from ..ops import _native

BUDGET = 3.0  # seconds per contender and pass


def model_job(
    model: torch.nn.Module,
    image: Tensor,
    train: bool,
    dtype: Optional[torch.dtype] = None,
) -> Callable[[], Tuple[Tensor, ...]]:
    """A forward pass of a model, or, to train, a pass with the gradients of all weights.

    It returns what the caller gets. The forward pass is under autocast to ``dtype``, if there is
    one.
    """

    def outputs() -> Tuple[Tensor, ...]:
        with nullcontext() if dtype is None else torch.autocast(image.device.type, dtype):
            return tensors_of(model(image))

    def forward() -> Tuple[Tensor, ...]:
        with torch.no_grad():
            return outputs()

    def forward_backward() -> Tuple[Tensor, ...]:
        model.zero_grad(set_to_none=True)
        loss: Any = sum(out.mean() for out in outputs())
        loss.backward()
        return ()

    return forward_backward if train else forward


def tensors_of(made: Any) -> Tuple[Tensor, ...]:
    """The tensors in what a model returns: one, or nested lists and tuples of them."""
    if isinstance(made, Tensor):
        return (made,)
    return tuple(tensor for part in made for tensor in tensors_of(part))


def seconds_of(
    job: Callable, device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Time of one run, on a CPU by a clock of seconds."""
    if device.type == 'cpu':
        began = clock()
        _kept = job()  # until the clock has stopped
        return clock() - began
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
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
    """Seconds of every run of each job. A job over its budget pauses in rounds, evenly spread.

    ``timer`` takes a job and the device. Default: :func:`seconds_of`.
    """
    timer = timer or seconds_of
    turns = {}
    for name, job in jobs.items():
        job()
        turns[name] = min(rounds, max(3, int(budget / timer(job, device))))
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
    """Bytes that torch holds at the peak, without those that are returned."""
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        made = job()
        return torch.cuda.max_memory_allocated() - before - bytes_of(made)
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        made = job()
    live, peak = 0, 0
    for event in profiler.kineto_results.events():
        if event.name() == '[memory]':
            live += event.nbytes()
            peak = max(peak, live)
    return peak - bytes_of(made) if peak >= bytes_of(made) else None


def process_memory(job: Callable) -> Optional[int]:
    """Bytes by which the peak of the resident memory grew, without those that are returned."""

    def status(key: str) -> int:
        lines = Path('/proc/self/status').read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)  # or the job would reuse what is resident
        Path('/proc/self/clear_refs').write_text('5')  # the peak becomes what is resident
    except (OSError, AttributeError):  # another system
        return None
    before = status('VmRSS')
    made = job()
    return max(0, status('VmHWM') - before - bytes_of(made))


def describe_machine(device: torch.device) -> Dict[str, str]:
    info = Path('/proc/cpuinfo')
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(':')[1].strip() for line in lines if line.startswith('model name')]
    machine = {
        'CPU': names[0] if names else platform.processor() or platform.machine(),
        'threads': str(torch.get_num_threads()),
        'vector instructions': torch.backends.cpu.get_cpu_capability(),
        'torch': torch.__version__,
        'native library': _native.WHY_MISSING or 'loaded',
    }
    if device.type == 'cuda':
        machine['GPU'] = torch.cuda.get_device_name()
    return machine
