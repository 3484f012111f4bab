"""Time and memory of a backbone over image size, with several attentions on the same host.

Each size is run with every attention in turn, one image at a time, without gradients (--train: with
the gradients of all weights, in training mode). An attention that needed more than --limit seconds
for a run sits out of larger sizes. On CUDA, softmax is torch's fused kernel, whose memory is linear
too; on a CPU as well.

  exponent   of time in the number of pixels, the slope of a line through log time over log pixels:
             1 is linear, 2 quadratic
  MB         the peak of memory beyond weights and image: of the process on a CPU under Linux, of
             torch's allocator on CUDA

Examples:
  python tools/benchmarks/benchmark_backbone.py --plot work_dirs/backbone.png
  python tools/benchmarks/benchmark_backbone.py --arch small --device cuda --train
  python tools/benchmarks/benchmark_backbone.py --attn SOFTAttention LaplacianAttention
"""

import argparse
import math
import statistics
from itertools import cycle
from pathlib import Path
from typing import Dict, List

import torch
from mmengine.registry import MODELS
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mmlaplace.models import BaseAttention
from mmlaplace.utils.command_line import ToolParser, write_json
from mmlaplace.utils.measuring import (
    describe_machine,
    interleave,
    model_job,
    process_memory,
    tensor_memory,
)

SIDES = (224, 384, 512, 768, 1024, 1280, 1536)
ATTENTIONS = ('LaplacianAttention', 'SoftmaxAttention')


def attentions() -> List[str]:
    """Names of the registered attentions."""
    return sorted(
        name for name, cls in MODELS.module_dict.items() if issubclass(cls, BaseAttention)
    )


def exponent(rows: List[dict]) -> float:
    """Slope of log time over log pixels, by least squares."""
    x = [math.log(row['side'] ** 2) for row in rows]
    y = [math.log(row['median ms']) for row in rows]
    return statistics.linear_regression(x, y).slope if len(rows) > 1 else math.nan


def run(args: argparse.Namespace, device: torch.device) -> List[dict]:
    """A row for each attention and size that was run."""
    models = {}
    for name in args.attn:
        torch.manual_seed(0)
        cfg = dict(type='LaplacianFormer', arch=args.arch, attn_cfg=dict(type=name))
        models[name] = MODELS.build(cfg).to(device).train(args.train)
    rows, last = [], dict.fromkeys(models, 0.0)
    for side in track(args.sides, 'image sizes'):
        image = torch.randn(1, 3, side, side, device=device)
        jobs = {
            name: model_job(model, image, args.train)
            for name, model in models.items()
            if last[name] <= args.limit
        }
        for name, seconds in interleave(jobs, args.rounds, device, args.limit).items():
            last[name] = statistics.median(seconds)
            row = {'attention': name, 'side': side, 'median ms': 1e3 * last[name]}
            row.update({'min ms': 1e3 * min(seconds), 'runs': len(seconds)})
            on_cpu, job = device.type == 'cpu', jobs[name]
            memory = process_memory(job) if on_cpu else tensor_memory(job, device)
            row['MB'] = None if memory is None else memory / 2**20
            rows.append(row)
    return rows


def print_table(rows: List[dict], attentions: List[str], sides: List[int]) -> None:
    first, *others = attentions
    table = Table(title='ms (MB) for one image')
    for header in ('side', *attentions, *(f'{other} / {first}' for other in others)):
        table.add_column(header, justify='right')
    found = {(row['attention'], row['side']): row for row in rows}
    for side in sides:
        cells, times = [str(side)], []
        for name in attentions:
            row = found.get((name, side))
            memory = '' if row is None or row['MB'] is None else f' ({row["MB"]:.0f})'
            cells.append('not run' if row is None else f'{row["median ms"]:.0f}{memory}')
            times.append(None if row is None else row['median ms'])
        for time in times[1:]:
            cells.append('-' if None in (time, times[0]) else f'{time / times[0]:.2f}')
        table.add_row(*cells)
    Console().print(table)


def plot(rows: List[dict], exponents: Dict[str, float], title: str, path: Path) -> None:
    """Time and memory over the image's side."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout='constrained')
    for axis, key, label in zip(axes, ('median ms', 'MB'), ('time (ms)', 'peak memory (MB)')):
        for name, marker in zip(exponents, cycle('os^Dvx*')):
            line = [(r['side'], r[key]) for r in rows if r['attention'] == name and r[key]]
            note = f', time ~ pixels^{exponents[name]:.2f}' if key == 'median ms' else ''
            axis.loglog(*zip(*line), marker=marker, label=name + note)
        sides = sorted({row['side'] for row in rows})
        axis.set_xticks(sides, [str(side) for side in sides])
        axis.xaxis.minorticks_off()
        axis.set(xlabel='side of the image (pixels)', ylabel=label)
        axis.grid(alpha=0.3, which='both')
        axis.legend()
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--arch', default='tiny', help='default: %(default)s')
    parser.add_argument(
        '--attn', nargs='+', choices=attentions(), default=list(ATTENTIONS), metavar='TYPE',
        help='attentions, of which the first is what the others are compared with; default: '
        + ' '.join(ATTENTIONS),
    )  # fmt: skip
    parser.add_argument('--sides', nargs='+', type=int, default=list(SIDES))
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--train', action='store_true', help='forward and backward')
    parser.add_argument('--rounds', type=int, default=10, help='default: %(default)s')
    parser.add_argument('--limit', type=float, default=30.0, help='seconds; default: %(default)s')
    parser.add_output('--plot', help='draw time and memory into this .png')
    parser.add_output('--out', default=Path('work_dirs/benchmark_backbone.json'))
    args = parser.parse_args()
    if args.device == 'cuda' and not torch.cuda.is_available():
        parser.error('--device cuda: torch finds no GPU')
    device = torch.device(args.device)
    machine = describe_machine(device)
    print('\n'.join(f'{key}: {value}' for key, value in machine.items()))
    rows = run(args, device)
    exponents = {
        name: exponent([row for row in rows if row['attention'] == name]) for name in args.attn
    }
    print_table(rows, args.attn, args.sides)
    for name, value in exponents.items():
        print(f'{name}: time ~ pixels^{value:.2f}')
    result = dict(machine=machine, arch=args.arch, train=args.train, exponents=exponents, rows=rows)
    write_json(args.out, result)
    if args.plot is not None:
        where = machine.get('GPU') or f'{machine["CPU"]}, {machine["threads"]} threads'
        passes = 'forward and backward' if args.train else 'forward'
        title = f'LaplacianFormer-{args.arch}, one image, {passes}; {where}'
        plot(rows, exponents, title, args.plot)
    print('wrote', *filter(None, (args.out, args.plot)))


if __name__ == '__main__':
    main()
