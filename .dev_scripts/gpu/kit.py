"""What the scripts of this folder share: the device, large examples of the ops, times, and reports.

With REHEARSE=1 in the environment, everything runs on a CPU, in small sizes and once.
"""

import contextlib
import inspect
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from mmlaplace import ops
from mmlaplace.analysis.measuring import describe_machine, interleave, seconds_of
from mmlaplace.commands.command_line import write_json
from mmlaplace.ops.table import OPS, Op

REHEARSAL = os.environ.get('REHEARSE') == '1'
DEVICE = torch.device('cpu' if REHEARSAL else 'cuda')
DTYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16}
ROUNDS = 1 if REHEARSAL else 10
BURST = 5e-3  # seconds of runs one right after the other, as a loop over batches has them
MOST_RUNS = 50  # of a burst, as the driver keeps about a thousand launches
RIDGE, BANDWIDTH = 1e-2, 4.0


class Budget:
    """Seconds that a part of a script may take. A rehearsal is small, and has no end."""

    def __init__(self, seconds: float) -> None:
        self.end = float('inf') if REHEARSAL else time.monotonic() + seconds

    def is_over(self) -> bool:
        return time.monotonic() > self.end


class Report:
    """Rows of figures. Each is printed and written as it comes, and so survives a sudden end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list = []
        self.not_reached: list = []
        self.machine = describe_machine(DEVICE)
        print('\n'.join(f'{key}: {value}' for key, value in self.machine.items()), flush=True)

    def add(self, line: str, **row: Any) -> None:
        print(line, flush=True)
        self.rows.append(row)
        self.write()

    def leave_out(self, name: str) -> None:
        """Note that time was up before something could be measured."""
        print(f'not reached: {name}', flush=True)
        self.not_reached.append(name)
        self.write()

    def write(self) -> None:
        result = dict(machine=self.machine, rehearsal=REHEARSAL, rows=self.rows)
        write_json(self.path, dict(result, not_reached=self.not_reached))

    def status(self) -> int:
        """The exit status: 1 if anything failed, or if there is no row. Being large is no fault."""
        failures = [row for row in self.rows if row.get('failure') and not row.get('too_large')]
        print(f'{len(self.rows)} rows, {len(failures)} failures, wrote {self.path}', flush=True)
        return int(bool(failures) or not self.rows)


class Failure(NamedTuple):
    """Why a job has no figure."""

    text: str
    too_large: bool  # it needs more memory than the GPU has

    @classmethod
    def of(cls, error: BaseException) -> 'Failure':
        message = str(error).strip().splitlines() or ['']
        text = f'{type(error).__name__}: {message[0][:300]}'
        return cls(text, isinstance(error, torch.cuda.OutOfMemoryError))


def wait() -> None:
    """Wait for the GPU."""
    if DEVICE.type == 'cuda':
        torch.cuda.synchronize()


def give_memory_back() -> None:
    if DEVICE.type == 'cuda':
        torch.cuda.empty_cache()


def attempt(job: Callable[[], Any]) -> Tuple[Any, Optional[Failure]]:
    """The result of a job, or why it failed. A figure that fails must not cost the others."""
    try:
        result = job()
        wait()
    except Exception as error:  # out of memory, no such kernel, does not compile, ...
        failure = Failure.of(error)
    else:
        return result, None
    give_memory_back()  # after the error, whose traceback keeps tensors
    return None, failure


def seconds_in_a_row(job: Callable, device: torch.device) -> float:
    """Seconds of one run among several that follow one another, or of a single long one."""
    once = seconds_of(job, device)
    runs = min(MOST_RUNS, int(BURST / max(once, 1e-9)))
    if runs < 2:
        return once

    def run_all() -> Any:
        for _ in range(runs - 1):
            job()
        return job()

    return seconds_of(run_all, device) / runs


def times_of(
    jobs: Dict[str, Callable], seconds: float = 0.25
) -> Tuple[Dict[str, float], Dict[str, Failure]]:
    """Median milliseconds of jobs that take turns, and why others failed.

    Args:
        jobs: Functions to run, by name.
        seconds: For each job, after its first run.
    """
    failures = {}
    for name, job in jobs.items():
        _, failure = attempt(job)
        if failure is not None:
            failures[name] = failure
    alive = {name: job for name, job in jobs.items() if name not in failures}
    timer = seconds_of if REHEARSAL else seconds_in_a_row
    times = interleave(alive, ROUNDS, DEVICE, budget=seconds, timer=timer)
    return {name: 1e3 * statistics.median(times[name]) for name in alive}, failures


def large_example(
    name: str, images: int, heads: int, side: int, landmarks: int, dims: int, dtype: torch.dtype
) -> Tuple[Op, Dict[str, Tensor]]:
    """A row of the table of ops for maps of this size, and its tensors.

    A tensor of the table's own example stands for what its shape says: 37 tokens, 5 landmarks, 8
    channels, or matrices of the landmarks. Any other is repeated for all images.
    """
    row = OPS[name]
    if 'hw_shape' in row.options:
        cells = int(landmarks**0.5)
        row = row._replace(
            options={**row.options, 'hw_shape': (side, side), 'cells': (cells, cells)}
        )
    marks = torch.randn(images, heads, landmarks, dims, device=DEVICE)
    kernel = ops.laplacian_kernel(marks, marks, BANDWIDTH)
    tensors = {}
    for key, example in row.tensors().items():
        shape = tuple(example.shape[-2:])
        if shape == (37, 8):
            tensor = torch.randn(images, heads, side * side, dims, device=DEVICE, dtype=dtype)
        elif shape == (5, 8):
            tensor = marks.to(dtype if key == 'k' else torch.float32)
        elif shape == (5, 5):
            tensor = ops.cholesky_inverse(kernel, ridge=RIDGE)
        elif shape == (37, 37):
            tensor = kernel
        else:
            copies = (images, *(1,) * (example.dim() - 1))
            tensor = example.detach().to(DEVICE, dtype).repeat(copies)
        tensors[key] = tensor.detach()
    return row, tensors


def function_of(name: str, row: Op, **options: Any) -> Callable:
    """The public function with the options of its row. Inverses check nothing, which would wait."""
    function = getattr(ops, name)
    if 'check' in inspect.signature(function).parameters:
        options['check'] = False
    return partial(function, **row.options, **options)


def macs_of(row: Op, tensors: Dict[str, Tensor]) -> int:
    """Multiply-accumulates of a call, 0 for an op that counts none."""
    if row.macs is None:
        return 0
    arguments = row.compiled_arguments(**tensors)
    return row.macs(*(tuple(x.shape) if isinstance(x, Tensor) else x for x in arguments))


def gradients(function: Callable, tensors: Dict[str, Tensor]) -> Tuple[Tensor, ...]:
    """The output, and the gradients of the sum of its squares for all tensors."""
    leaves = {key: tensor.detach().requires_grad_() for key, tensor in tensors.items()}
    out = function(**leaves)
    wide = out if out.dtype == torch.float64 else out.float()
    return (out.detach(), *torch.autograd.grad(wide.square().sum(), list(leaves.values())))


# ---- what a GPU alone has; a rehearsal does the same without


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """A context in which waiting for the GPU is an error."""
    if DEVICE.type != 'cuda':
        yield
        return
    torch.cuda.set_sync_debug_mode('error')
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode('default')


def captured(job: Callable) -> Tuple[Callable, Any]:
    """A CUDA graph of a job, as a function that replays it, and the result that it overwrites."""
    if DEVICE.type != 'cuda':
        result = job()
        kept = result if isinstance(result, tuple) else (result,)

        def run_again() -> None:
            again = job()
            again = again if isinstance(again, tuple) else (again,)
            for tensor, new in zip(kept, again):
                tensor.data.copy_(new)

        return run_again, result
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            job()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = job()
    return graph.replay, result


def on_side_stream(job: Callable) -> Any:
    """The result of a job on another stream, which is busy for a while before it."""
    if DEVICE.type != 'cuda':
        return job()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)  # some 50 ms
        result = job()
    stream.synchronize()
    return result
