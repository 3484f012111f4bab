"""Measure time and memory of backbones: of mmlaplace, of a toolbox, of timm, or of a config.

Candidates are named as --list prints them. 'peers' stands for all models of other projects whose
published top-1 is known. Each candidate computes its last map, without neck and head, with random
weights. Models of timm compute the pooled vector. A config's backbone stays as the config has it.

  laplacianformer-tiny                       a backbone of mmlaplace
  laplacianformer-tiny+SoftmaxAttention      the same with another attention
  mmpretrain:ResNet-50                       a toolbox's own class
  timm:efficientvit_b1                       a model of timm, where timm is installed
  my_config.py                               the backbone of a config

For each size, given as SIDE or SIDExBATCH, all candidates take turns in all modes, in shuffled
rounds after a warm-up, without gradients (--train: forward and backward, in training mode). A
candidate that needed more than 30 seconds for a run skips larger sizes. A candidate that fails
is named with the reason, and the others continue.

  eager     as the toolboxes run it
  compiled  by torch.compile, with inductor
  optimized with weights that are packed for a CPU, by mmlaplace.cpu.optimize
  bf16      under autocast to bfloat16; compiled-bf16 is both
  exponent  of time in the number of pixels, where all sizes have the same batch: 1 is linear
  MB        the peak of memory beyond weights and images, gradients included: of the process on a
            CPU under Linux, of torch's allocator on CUDA

Examples:
  python tools/benchmarks/benchmark_backbone.py --plot work_dirs/backbone.png
  python tools/benchmarks/benchmark_backbone.py laplacianformer-tiny mmpretrain:ResNet-50 \\
      mmdet:PyramidVisionTransformer-tiny --image-size 224x8 512 1024 --modes eager compiled bf16
  python tools/benchmarks/benchmark_backbone.py laplacianformer-tiny soft-tiny \\
      polaformer-pvt-tiny peers --image-size 224x8 256x8 --plot-top1 work_dirs/top1.png
  python tools/benchmarks/benchmark_backbone.py --list 'mmpretrain:*Swin*'
  # the tables of an earlier call in Markdown, and a plot of some of its candidates
  python tools/benchmarks/benchmark_backbone.py --report work_dirs/benchmark_backbone.json
  python tools/benchmarks/benchmark_backbone.py laplacianformer-small pvt-tiny \\
      --report docs/logs/benchmark_choose_cpu.json --plot size.png
"""

import argparse
import importlib.util
import re
import statistics
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

import torch
from rich.progress import track
from torch import Tensor, nn

from mmlaplace.analysis.measuring import (
    describe_machine,
    interleave,
    model_job,
    process_memory,
    tensor_memory,
)
from mmlaplace.commands.command_line import (
    PICTURES,
    ToolParser,
    positive,
    read_json,
    write_json,
)
from mmlaplace.cpu import optimize
from mmlaplace.lab.side_by_side.backbone_candidates import SOURCES, catalogue, channels_of, find
from mmlaplace.lab.side_by_side.backbone_report import (
    exponents,
    measured,
    plot,
    plot_top1,
    print_tables,
    short,
)
from mmlaplace.lab.side_by_side.published_top1 import peers

CANDIDATES = ('laplacianformer-tiny', 'laplacianformer-tiny+SoftmaxAttention')
LIMIT = 30.0  # seconds for the runs of a candidate at a size, of which there are at least 3
SIZES = tuple((side, 1) for side in (224, 384, 512, 768, 1024, 1280, 1536))
# By name, how a model is changed, and the dtype of autocast.
MODES: Dict[str, Tuple[str, Optional[torch.dtype]]] = {
    'eager': ('', None),
    'compiled': ('compiled', None),
    'optimized': ('optimized', None),
    'bf16': ('', torch.bfloat16),
    'compiled-bf16': ('compiled', torch.bfloat16),
    'optimized-bf16': ('optimized', torch.bfloat16),
}


class Attempt:
    """A job whose failure is kept rather than raised, so that it costs no other its figures."""

    def __init__(self, job: Callable) -> None:
        self.job, self.failure = job, ''

    def __call__(self):
        if self.failure:
            return ()
        try:
            return self.job()
        except Exception as error:  # out of memory, does not compile, takes no such size, ...
            self.failure = f'{type(error).__name__}: {error}'
        torch.cuda.empty_cache()  # after the error, whose traceback keeps tensors
        return ()


def parse_size(text: str) -> Tuple[int, int]:
    """Side and batch of ``224x8``, or of ``224``."""
    match = re.fullmatch(r'([1-9]\d*)(?:x([1-9]\d*))?', text)
    if match is None:
        raise argparse.ArgumentTypeError(f'{text!r}: give SIDExBATCH such as 224x8, or SIDE')
    return int(match[1]), int(match[2] or 1)


def step_of(model: nn.Module, images: Tensor, train: bool, mode: str) -> Callable:
    """A pass of a model in a mode."""
    change, dtype = MODES[mode]
    if change == 'compiled':
        model = torch.compile(model, dynamic=False)
    elif change == 'optimized':
        model = optimize(model, dtype or torch.float32)
    return model_job(model, images, train, dtype)


def measure(models: Dict[str, nn.Module], args: argparse.Namespace, device: torch.device) -> list:
    """A row for each size, candidate and mode."""
    rows, slow = [], {}
    compiles = any(MODES[mode][0] == 'compiled' for mode in args.modes)
    if compiles:
        from torch._dynamo import config

        # Candidates share the code of their classes. Past the limit torch would run them eagerly.
        config.cache_size_limit = max(8, 2 * len(models) * len(args.modes))
    for side, batch in args.image_size:
        if compiles:
            torch.compiler.reset()  # the code for the last size, or all would count for the limit
        images = {
            channels: torch.randn(batch, channels, side, side, device=device)
            for channels in set(args.channels.values())
        }
        jobs, pixels = {}, batch * side * side
        for name, model in models.items():
            for mode in args.modes:
                too_slow = slow.get((name, mode))
                if too_slow is None or pixels < too_slow[0]:
                    taken = images[args.channels[name]]
                    jobs[name, mode] = Attempt(step_of(model, taken, args.train, mode))
                else:
                    row = dict(candidate=name, mode=mode, side=side, batch=batch)
                    rows.append(dict(row, failure=f'sat out: needed {too_slow[1]:.0f} s before'))
        for job in track(jobs.values(), f'{side}x{batch}, warm-up', transient=True):
            job()
        alive = {key: job for key, job in jobs.items() if not job.failure}
        seconds = interleave(alive, args.rounds, device, LIMIT)
        for (name, mode), job in jobs.items():
            row = row_of(job, seconds.get((name, mode), []), batch, device)
            rows.append(dict(candidate=name, mode=mode, side=side, batch=batch, **row))
            if not job.failure and row['median ms'] > 1e3 * LIMIT:
                slow[name, mode] = pixels, row['median ms'] / 1e3
    return rows


def row_of(job: Attempt, seconds: List[float], batch: int, device: torch.device) -> dict:
    memory = process_memory(job) if device.type == 'cpu' else tensor_memory(job, device)
    if job.failure:
        return {'failure': job.failure}
    median = statistics.median(seconds)
    return {
        'median ms': 1e3 * median,
        'min ms': 1e3 * min(seconds),
        'runs': len(seconds),
        'ms per image': 1e3 * median / batch,
        'images per second': batch / median,
        'MB': None if memory is None else memory / 2**20,
        'failure': '',
    }


def print_list(pattern: str) -> None:
    """The names that match, or without a pattern those of mmlaplace, and how to see others."""
    for source in SOURCES if pattern else ['']:
        try:
            names = [name for name in catalogue(source) if fnmatchcase(name, pattern or '*')]
        except ImportError as error:
            print(f'{source}: {error}', file=sys.stderr)
        else:
            print(*names, sep='\n', end='\n' if names else '')
    if not pattern:
        print(f'Of {", ".join(SOURCES[1:])} by a pattern, such as --list "timm:*swin*"')


def parse_args() -> argparse.Namespace:
    parser = ToolParser(__doc__)
    parser.add_argument(
        'candidates',
        nargs='*',
        metavar='CANDIDATE',
        help=f'default: {" ".join(CANDIDATES)}',
    )
    parser.add_argument(
        '--list',
        nargs='?',
        const='',
        metavar='PATTERN',
        help="print the names that match, or mmlaplace's, and stop",
    )
    parser.add_image_size(
        former='--sizes',
        nargs='+',
        type=parse_size,
        default=list(SIZES),
        metavar='SIDExBATCH',
        help='default: ' + ' '.join(str(side) for side, _ in SIZES),
    )
    parser.add_argument('--modes', nargs='+', choices=MODES, default=['eager'])
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--threads', type=positive, help='on the CPU; default: as torch chooses')
    parser.add_argument('--train', action='store_true', help='forward and backward')
    parser.add_argument('--rounds', type=positive, default=10, help='default: %(default)s')
    parser.add_argument(
        '--base', metavar='CANDIDATE', help='what the others are compared with; default: the first'
    )
    parser.add_output('--plot', suffixes=PICTURES, help='draw time and memory over the size')
    parser.add_output(
        '--plot-top1', suffixes=PICTURES, help='draw published top-1 over measured speed'
    )
    parser.add_output('--out', default=Path('work_dirs/benchmark_backbone.json'))
    parser.add_argument(
        '--report', type=Path, metavar='JSON', help='print and draw what an earlier call measured'
    )
    args = parser.parse_args()
    if args.list is not None:
        print_list(args.list)
        parser.exit()
    if (args.plot or args.plot_top1) and importlib.util.find_spec('matplotlib') is None:
        parser.error('plots need matplotlib; install it with pip install matplotlib')
    given = [n for name in args.candidates for n in (peers() if name == 'peers' else [name])]
    args.modes = list(dict.fromkeys(args.modes))
    args.report = read_json(args.report, 'candidates') if args.report else None
    measured_before = args.report['candidates'] if args.report else None
    args.candidates = list(dict.fromkeys(given)) or measured_before or list(CANDIDATES)
    args.base = args.base or args.candidates[0]
    if args.base not in args.candidates:
        parser.error(f'--base must be one of {", ".join(args.candidates)}, got {args.base}')
    if args.report:
        if unknown := [name for name in args.candidates if name not in measured_before]:
            parser.error(f'--report has no {unknown[0]}; it has {", ".join(measured_before)}')
        return args
    optimized = [mode for mode in args.modes if MODES[mode][0] == 'optimized']
    if optimized and (args.train or args.device != 'cpu'):
        parser.error(f'--modes {optimized[0]} is for inference on a CPU')
    args.builders, args.channels, args.failures = {}, {}, {}
    for name in args.candidates:
        try:
            args.builders[name] = find(name)
            args.channels[name] = channels_of(name)
        except ValueError as error:
            parser.error(str(error))
        except (ImportError, AssertionError) as error:  # mmdet asserts mmcv's version
            args.failures[name] = str(error)
    return args


def draw(result: dict, args: argparse.Namespace) -> None:
    """Write the plots that are asked for."""
    if args.plot is not None:
        plot(result, args.plot)
    if args.plot_top1 is not None:
        plot_top1(result, args.plot_top1)


def main() -> int:
    args = parse_args()
    if args.report:
        rows = [row for row in args.report['rows'] if row['candidate'] in args.candidates]
        result = dict(args.report, candidates=args.candidates, rows=rows)
        result['exponents'] = exponents(measured(result))
        print_tables(result, args.base, markdown=True)
        draw(result, args)
        return 0
    device = torch.device(args.device)
    if args.threads:
        torch.set_num_threads(args.threads)
    machine = describe_machine(device)
    print('\n'.join(f'{key}: {value}' for key, value in machine.items()))
    models, failures = {}, args.failures
    for name, builder in args.builders.items():
        torch.manual_seed(0)
        attempt = Attempt(lambda builder=builder: builder(args.train).to(device))
        model = attempt()
        if attempt.failure:
            failures[name] = attempt.failure
        else:
            models[name] = model
            model.train(args.train)  # mmpretrain's return None
    rows = measure(models, args, device)
    result = dict(
        machine=machine,
        train=args.train,
        rounds=args.rounds,
        base=args.base,
        sizes=args.image_size,
        modes=args.modes,
        candidates=args.candidates,
        failures=failures,
        models={
            name: {
                'class': f'{type(model).__module__}.{type(model).__qualname__}',
                'parameters': sum(weight.numel() for weight in model.parameters()),
            }
            for name, model in models.items()
        },
        rows=rows,
    )
    result['exponents'] = exponents(measured(result))
    write_json(args.out, result)
    print_tables(result, args.base)
    for name, reason in failures.items():
        print(f'{name} was not measured: {short(reason)}', file=sys.stderr)
    if not measured(result):
        print('nothing was measured', file=sys.stderr)
        return 1
    draw(result, args)
    print('wrote', *filter(None, (args.out, args.plot, args.plot_top1)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
