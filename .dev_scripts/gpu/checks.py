"""Check how ops and models behave on a GPU: what only a run there can show.

    python .dev_scripts/gpu/checks.py                            # three and a half minutes
    python .dev_scripts/gpu/checks.py --only 'nystrom_attention *' '* one graph'

For every op of mmlaplace/ops/table.py, by the compiled op: values and gradients are those of the
reference on the CPU; nothing waits for the GPU; a CUDA graph replays it after calls of other sizes;
two runs have the same bits; a busy side stream gives the same; torch.compile keeps it as one graph;
it computes in fp32 under autocast. For a backbone of every class: values and gradients are as exact
as on the CPU. For those of MODELS also: no waiting, a CUDA graph, determinism, autocast, and
torch.compile with and without reduce-overhead. At last, tensors of 2^31 values.

A check that fails is named with the reason, and the others run. The exit status is then 1. Where
the memory of the GPU is too small for one, it says so.
"""

import os

os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')  # cuBLAS then gives the same bits

import copy
import sys
import time
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from kit import (
    DEVICE,
    REHEARSAL,
    Budget,
    Report,
    attempt,
    captured,
    function_of,
    give_memory_back,
    gradients,
    large_example,
    no_waiting,
    on_side_stream,
    times_of,
    wait,
)
from torch import Tensor, nn

from mmlaplace import create_backbone
from mmlaplace.analysis.measuring import tensors_of
from mmlaplace.commands.command_line import ToolParser, positive
from mmlaplace.model_zoo import options_of, read_backbones
from mmlaplace.ops.table import OPS

Check = Tuple[str, Callable[[], str]]  # a name, and a function that gives figures or raises

# Images, heads, side of the map, landmarks and channels of a head.
SIZE, OTHER_SIZE = (8, 2, 28, 49, 32), (2, 2, 35, 49, 32)
MODELS = ('laplacianformer-tiny', 'soft-tiny', 'polaformer-pvt-tiny', 'polaformer-swin-tiny')
SIDE, IMAGES = 224, 8
if REHEARSAL:
    SIZE, OTHER_SIZE = (2, 2, 6, 9, 16), (1, 2, 7, 9, 16)
    MODELS, SIDE, IMAGES = ('laplacianformer-micro', 'polaformer-pvt-micro'), 32, 2
# Ops in fp64: sums in another order, of thousands of numbers of size one. Inverses have condition
# numbers below a thousand.
OPS_AGREE = 1e-8
# Two results in fp32 round in different orders. Neither may be much further from fp64 than the
# other, or than some roundings.
TIMES_THE_ERROR, LEAST_ERROR = 10.0, 1e-6


def distance(tensor: Tensor, truth: Tensor) -> float:
    """The norm of the difference, relative to that of ``truth``."""
    tensor, truth = tensor.detach().cpu().double(), truth.detach().cpu().double()
    return ((tensor - truth).norm() / truth.norm().clamp(min=1e-30)).item()


def expect(value: bool, text: str) -> None:
    if not value:
        raise AssertionError(text)


# ---- ops


def call(name: str, dtype: torch.dtype = torch.float32, size: tuple = SIZE) -> Tuple[Any, dict]:
    """The compiled op as a function of its tensors, and these."""
    torch.manual_seed(0)
    row, tensors = large_example(name, *size, dtype)
    return function_of(name, row, backend='native'), tensors


def op_is_as_on_the_cpu(name: str) -> str:
    function, tensors = call(name, torch.float64)
    tensors = {key: tensor.double() for key, tensor in tensors.items()}
    on_cpu = {key: tensor.cpu() for key, tensor in tensors.items()}
    wanted = gradients(partial(function, backend='reference'), on_cpu)
    errors = [distance(*pair) for pair in zip(gradients(function, tensors), wanted)]
    expect(max(errors) <= OPS_AGREE, f'relative errors {errors}, of which the first is the value')
    return f'relative error {errors[0]:.1e}, of gradients {max(errors[1:]):.1e}'


def op_waits_for_nothing(name: str) -> str:
    function, tensors = call(name)
    gradients(function, tensors)
    wait()
    with no_waiting():
        gradients(function, tensors)
    return 'forward and backward'


def op_in_a_graph(name: str) -> str:
    function, tensors = call(name)
    fresh = {key: tensor.flip(0).clone() for key, tensor in tensors.items()}
    with torch.no_grad():
        replay, result = captured(lambda: function(**tensors))
        wanted = function(**fresh).clone()
        other, others = call(name, size=OTHER_SIZE)
        other(**others)
        for key, tensor in tensors.items():
            tensor.copy_(fresh[key])
        replay()
        wait()
    expect(torch.equal(result, wanted), f'relative error {distance(result, wanted):.1e}')
    return 'replayed with other numbers, after a call of another size'


def op_is_deterministic(name: str) -> str:
    function, tensors = call(name)
    first, second = gradients(function, tensors), gradients(function, tensors)
    differ = sum(not torch.equal(*pair) for pair in zip(first, second))
    expect(differ == 0, f'{differ} of {len(first)} tensors have other bits in a second run')
    return f'{len(first)} tensors have the same bits'


def op_on_a_side_stream(name: str) -> str:
    function, tensors = call(name)
    wanted = gradients(function, tensors)
    doubled = {key: 2 * tensor for key, tensor in tensors.items()}

    def job() -> Tuple[Tensor, ...]:
        # Computed on this stream, so that another would read it too early.
        return gradients(function, {key: tensor / 2 for key, tensor in doubled.items()})

    expect(all(map(torch.equal, on_side_stream(job), wanted)), 'another result')
    return 'the same'


def op_is_one_graph(name: str) -> str:
    function, tensors = call(name)
    backend = 'aot_eager' if REHEARSAL else 'inductor'
    torch.compiler.reset()  # the code of other ops would count for the limit
    compiled = torch.compile(function, fullgraph=True, dynamic=False, backend=backend)
    errors = [
        distance(*pair) for pair in zip(gradients(compiled, tensors), gradients(function, tensors))
    ]
    expect(max(errors) <= 1e-4, f'relative errors {errors}')  # fp32, possibly by the reference
    return f'relative error {max(errors):.1e}'


def op_under_autocast(name: str) -> str:
    errors = []
    for dtype in (torch.float16, torch.bfloat16):
        function, tensors = call(name)
        with torch.autocast(DEVICE.type, dtype):
            results = gradients(function, tensors)
        expect(all(result.isfinite().all() for result in results), f'not finite in {dtype}')
        errors.append(distance(results[0], function(**tensors)))
    # Tensors are fp32 here, and ops compute in fp32 under any autocast.
    expect(max(errors) <= 1e-5, f'relative errors {errors}')
    return 'finite, and as without'


# ---- models


def backbone(name: str, train: bool = False) -> nn.Module:
    """A backbone on the CPU with the same weights each time, without stochastic depth."""
    torch.manual_seed(0)
    model = create_backbone(name, out_indices=-1, drop_path_rate=0.0)
    return model.train(train)


def one_of_each_class() -> List[str]:
    """The name of a small backbone of every class, which is micro where there is one."""
    if REHEARSAL:
        return list(MODELS)
    names = [model.name for model in read_backbones()]
    names.sort(key=lambda name: not name.endswith('-micro'))
    found: Dict[str, str] = {}
    for name in names:
        found.setdefault(options_of(name)['type'], name)
    return list(found.values())


def value_and_gradients(model: nn.Module, images: Tensor) -> Tuple[Tensor, ...]:
    (out,) = tensors_of(model(images))
    out.float().square().mean().backward()
    found = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return (out.detach(), *(grad for grad in found.values() if grad is not None))


def model_is_as_on_the_cpu(name: str) -> str:
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    model = backbone(name)
    truth = value_and_gradients(copy.deepcopy(model).double(), images)
    on_cpu = value_and_gradients(model, images.float())
    found = value_and_gradients(model.to(DEVICE), images.float().to(DEVICE))
    expect(len(found) == len(truth), f'{len(found)} gradients, of {len(truth)} on the CPU')
    errors = [distance(*pair) for pair in zip(found, truth)]
    usual = [distance(*pair) for pair in zip(on_cpu, truth)]
    allowed = [max(TIMES_THE_ERROR * error, LEAST_ERROR) for error in usual]
    # A gradient that is zero up to rounding has no relative error.
    largest = max(tensor.norm().item() for tensor in truth[1:])
    worse = [
        f'{error:.1e} ({of_cpu:.1e} on the CPU)'
        for error, of_cpu, limit, tensor in zip(errors, usual, allowed, truth)
        if error > limit and tensor.norm() > 1e-6 * largest
    ]
    expect(not worse, f'relative errors {worse[:5]} of {len(worse)} tensors')
    return f'errors {errors[0]:.1e}, on the CPU {usual[0]:.1e}; {len(truth) - 1} gradients'


def training_step(model: nn.Module, images: Tensor) -> None:
    with torch.autocast(DEVICE.type, torch.bfloat16):
        outputs = tensors_of(model(images))
    sum(out.float().mean() for out in outputs).backward()
    model.zero_grad(set_to_none=True)


def random_images(count: int = IMAGES, height: int = SIDE, width: int = SIDE) -> Tensor:
    return torch.randn(count, 3, height, width, device=DEVICE)


def model_waits_for_nothing(name: str) -> str:
    model, images = backbone(name, True).to(DEVICE), random_images()
    for _ in range(2):
        training_step(model, images)
    wait()
    with no_waiting():
        training_step(model, images)
    return 'a training step in bf16'


def model_in_a_graph(name: str) -> str:
    model, images = backbone(name).to(DEVICE), random_images()
    with torch.no_grad():
        replay, result = captured(lambda: tensors_of(model(images)))
        fresh = random_images()
        wanted = tensors_of(model(fresh))[0].clone()
        for extra in (32, 64):  # the tables of other sizes take the place of those that are kept
            model(random_images(1, SIDE + extra, SIDE))
        images.copy_(fresh)
        replay()
        wait()
        error = distance(result[0], wanted)
        expect(error <= 1e-4, f'relative error {error:.1e}')  # cuDNN may choose another algorithm
        times, _ = times_of({'eager': lambda: model(fresh), 'graph': lambda: (replay(), ())[1]})
    return f'error {error:.1e}; eager {times["eager"]:.2f} ms, graph {times["graph"]:.2f} ms'


def model_is_deterministic(name: str) -> str:
    model, images = backbone(name).to(DEVICE), random_images()

    def step() -> Tuple[Tensor, ...]:
        with torch.autocast(DEVICE.type, torch.bfloat16):
            return value_and_gradients(model, images)

    torch.use_deterministic_algorithms(True)
    try:
        first, second = step(), step()
    finally:
        torch.use_deterministic_algorithms(False)
    differ = sum(not torch.equal(*pair) for pair in zip(first, second))
    expect(differ == 0, f'{differ} of {len(first)} tensors have other bits in a second step')
    return f'{len(first)} tensors have the same bits'


def model_under_autocast(name: str) -> str:
    model, images, errors = backbone(name).to(DEVICE), random_images(4), []
    with torch.no_grad():
        truth = tensors_of(model(images))[0]
        for dtype in (torch.float16, torch.bfloat16):
            with torch.autocast(DEVICE.type, dtype):
                out = tensors_of(model(images))[0]
            expect(bool(out.isfinite().all()), f'not finite in {dtype}')
            errors.append(distance(out, truth))
    return f'relative error in fp16 {errors[0]:.1e}, in bf16 {errors[1]:.1e}'


def model_compiled(name: str, mode: str) -> str:
    model, images = backbone(name).to(DEVICE), random_images()
    backend = dict(backend='aot_eager') if REHEARSAL else dict(mode=mode)
    compiled = torch.compile(model, dynamic=False, **backend)
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
        wanted = tensors_of(model(images))[0]
        began = time.perf_counter()
        error = distance(tensors_of(compiled(images))[0], wanted)
        first = time.perf_counter() - began
        times, failures = times_of({'eager': lambda: model(images), mode: lambda: compiled(images)})
    expect(not failures, str(failures))
    # Twice what a block of bf16 usually differs, as fused operations round at other places.
    expect(error <= 5e-2, f'relative error {error:.1e}')
    return (
        f'error {error:.1e}; eager {times["eager"]:.2f} ms, compiled {times[mode]:.2f} ms, '
        f'first call {first:.0f} s'
    )


# ---- large tensors


def op_of_many_values(name: str) -> str:
    """The last image of a batch with more than 2^31 values is as it is alone."""
    images, heads, side, dims = (2, 2, 8, 16) if REHEARSAL else (33, 8, 362, 64)
    torch.manual_seed(0)
    row, tensors = large_example(name, images, heads, side, 49, dims, torch.bfloat16)
    function = function_of(name, row, backend='native')
    with torch.no_grad():
        last = function(**tensors)[-1:]
        alone = function(**{key: tensor[-1:].clone() for key, tensor in tensors.items()})
    expect(bool(last.isfinite().all()), 'not finite')
    error = distance(last, alone)
    expect(error <= 1e-2, f'relative error {error:.1e}')  # bf16; sums in other parts of the tokens
    count = max(tensor.numel() for tensor in tensors.values())
    return f'{count / 2**31:.3f} x 2^31 values, relative error {error:.1e}'


OP_CHECKS = {
    'as on the CPU': op_is_as_on_the_cpu,
    'waits for nothing': op_waits_for_nothing,
    'CUDA graph': op_in_a_graph,
    'deterministic': op_is_deterministic,
    'side stream': op_on_a_side_stream,
    'autocast': op_under_autocast,
    'one graph': op_is_one_graph,
}
MODEL_CHECKS = {
    'waits for nothing': model_waits_for_nothing,
    'CUDA graph': model_in_a_graph,
    'deterministic': model_is_deterministic,
    'autocast': model_under_autocast,
}
COMPILE_MODES = ('default', 'reduce-overhead')


def all_checks() -> Iterator[Check]:
    """What is checked, the quick and the telling first."""
    for what, of_op in OP_CHECKS.items():
        for name in OPS:
            yield f'{name} {what}', partial(of_op, name)
    for name in one_of_each_class():
        yield f'{name} as on the CPU', partial(model_is_as_on_the_cpu, name)
    for name in MODELS:
        for what, of_model in MODEL_CHECKS.items():
            yield f'{name} {what}', partial(of_model, name)
    for name, row in OPS.items():
        if row.reads_halves:
            yield f'{name} 2^31 values', partial(op_of_many_values, name)
    for mode in COMPILE_MODES:
        for name in MODELS:
            yield f'{name} compiled, {mode}', partial(model_compiled, name, mode)


def main() -> int:
    parser = ToolParser(__doc__)
    parser.add_argument('--only', nargs='+', default=['*'], metavar='PATTERN', help='of names')
    parser.add_argument('--seconds', type=positive, default=210, help='default: %(default)s')
    parser.add_output('--out', default=Path('work_dirs/gpu_check/checks.json'))
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # convolutions in fp32, as on the CPU
    budget, report = Budget(args.seconds), Report(args.out)
    for name, check in all_checks():
        if not any(fnmatchcase(name, pattern) for pattern in args.only):
            continue
        if budget.is_over():
            report.leave_out(name)
            continue
        began = time.perf_counter()
        text, failure = attempt(check)
        seconds = time.perf_counter() - began
        row = dict(check=name, seconds=seconds)
        if failure is None:
            report.add(f'[ok]   {name}: {text} ({seconds:.1f} s)', text=text, **row)
        else:
            row.update(failure=failure.text, too_large=failure.too_large)
            mark = '[none]' if failure.too_large else '[FAIL]'
            report.add(f'{mark} {name}: {failure.text}', **row)
        give_memory_back()
    return report.status()


if __name__ == '__main__':
    sys.exit(main())
