"""Train the smallest model of every backbone family for 500 steps under bf16 autocast on a CPU.

Every loss and every gradient has to be finite, and the memory must not grow: the resident size
after the last step is at most 2 percent above that after the first --settle steps. These
first steps fill torch's caches. Before the size is read, garbage is collected and free memory is
given back, so growth comes from memory that is still in use. 'own' leaves out mapped files, which
are mostly torch's libraries. Each family trains in a process of its own, with a linear classifier
and AdamW, on 64 random images that it memorises. Exit status: 0, or 1 if a family failed.

Examples:
  python tools/benchmarks/soak.py
  python tools/benchmarks/soak.py --families SOFT PolaFormerSwin --steps 200 \\
      --out work_dirs/soak.json --force
"""

import ctypes
import gc
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Dict, Optional

import torch
import torch.nn as nn
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from rich.console import Console
from rich.table import Table

from mmlaplace.analysis.measuring import describe_machine
from mmlaplace.commands.command_line import ToolParser, positive, write_json
from mmlaplace.models import PyramidBackbone

IMAGES, CLASSES = 64, 10
TOLERANCE = 2.0  # percent by which the memory may grow


def families() -> list:
    """Names of the registered backbones of ours."""
    return sorted(
        name
        for name, cls in MODELS.module_dict.items()
        if cls.__module__.startswith('mmlaplace.') and issubclass(cls, PyramidBackbone)
    )


def smallest_arch(family: str) -> str:
    """The arch with the least work: ``micro`` where the family has one."""
    zoo = MODELS.get(family).arch_zoo
    return min(zoo, key=lambda name: sum(d * c for d, c in zip(*work(zoo[name]))))


def work(arch: dict) -> tuple:
    return arch['depths'], [dims**2 for dims in arch['embed_dims']]


def resident_size() -> Optional[Dict[str, float]]:
    """MB of this process in memory, less what is free to be used again; None beyond Linux."""
    gc.collect()
    try:
        ctypes.CDLL('libc.so.6').malloc_trim(0)
        text = Path('/proc/self/status').read_text(encoding='utf-8')
    except (OSError, AttributeError):
        return None
    fields = dict(line.split(':', 1) for line in text.splitlines())
    names = {'all': 'VmRSS', 'own': 'RssAnon'}
    return {name: int(fields[field].split()[0]) / 1024 for name, field in names.items()}


def train(family: str, steps: int, settle: int, batch: int, side: int) -> dict:
    """What happened in the training of a family; ``failure`` is empty if all was finite."""
    MMLogger.get_current_instance().setLevel('ERROR')  # else init_weights logs every parameter
    torch.manual_seed(0)
    torch.set_num_threads(1)
    backbone = MODELS.build(
        dict(type=family, arch=smallest_arch(family), img_size=side, drop_path_rate=0.1)
    )
    backbone.init_weights()
    head = nn.Linear(backbone.embed_dims[-1], CLASSES)
    model = nn.ModuleList([backbone, head]).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    images = torch.randn(IMAGES, 3, side, side)
    labels = torch.arange(IMAGES) % CLASSES
    losses, norms, failure, settled = [], [], '', None
    start = time.perf_counter()
    for step in range(1, steps + 1):
        chosen = torch.randperm(IMAGES)[:batch]
        with torch.autocast('cpu', dtype=torch.bfloat16):
            scores = head(backbone(images[chosen])[-1].mean((2, 3)))
            loss = nn.functional.cross_entropy(scores, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        # Infinite or NaN as soon as one element of one gradient is.
        norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf).item()
        losses.append(loss.item())
        norms.append(norm)
        if not (math.isfinite(loss.item()) and math.isfinite(norm)):
            failure = f'step {step}: loss {loss.item()}, norm of the gradients {norm}'
            break
        optimizer.step()
        if step == settle:
            settled = resident_size()
    return {
        'family': family,
        'arch': smallest_arch(family),
        'steps': len(losses),
        'first loss': losses[0],
        'last loss': losses[-1],
        'largest gradient norm': max(norms),
        'MB settled': settled,
        'MB at the end': resident_size(),
        'seconds': time.perf_counter() - start,
        'failure': failure,
    }


def in_a_new_process(family: str, *settings: int) -> dict:
    with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
        try:
            return pool.submit(train, family, *settings).result()
        except BrokenProcessPool as error:  # killed, or crashed
            return dict(family=family, failure=f'its process died: {error}')


def growth(row: dict) -> Optional[Dict[str, float]]:
    """Percent by which the resident sizes grew."""
    settled, end = row.get('MB settled'), row.get('MB at the end')
    if settled is None or end is None:
        return None
    return {name: 100 * (end[name] / settled[name] - 1) for name in settled}


def print_table(rows: list, settle: int) -> None:
    table = Table(title='bf16 autocast on a CPU')
    columns = ('family', 'steps', 'loss', 'gradient', f'MB (own) after {settle}', 'at the end', '')
    for column in columns:
        table.add_column(column, justify='left' if column in ('family', '') else 'right')
    for row in rows:
        if 'steps' not in row:
            table.add_row(row['family'], *[''] * 5, row['failure'])
            continue
        sizes = [row['MB settled'], row['MB at the end']]
        table.add_row(
            f'{row["family"]} {row["arch"]}',
            str(row['steps']),
            f'{row["first loss"]:.2f} → {row["last loss"]:.2f}',
            f'≤ {row["largest gradient norm"]:.1f}',
            *('-' if size is None else f'{size["all"]:.0f} ({size["own"]:.0f})' for size in sizes),
            row['failure'] or 'ok',
        )
    Console(width=140).print(table)


def main() -> int:
    parser = ToolParser(__doc__)
    parser.add_argument('--families', nargs='+', choices=families(), default=families())
    parser.add_argument('--steps', type=positive, default=500, help='default: %(default)s')
    parser.add_argument('--settle', type=int, default=100, help='default: %(default)s')
    parser.add_argument('--batch', type=positive, default=8, help='default: %(default)s')
    parser.add_argument(
        '--image-size', type=positive, default=64, help='pixels of a side; default: %(default)s'
    )
    parser.add_output('--out', default=Path('work_dirs/soak.json'))
    args = parser.parse_args()
    if not 0 < args.settle < args.steps:
        parser.error(f'--settle must be between 0 and --steps {args.steps}, got {args.settle}')
    if args.batch > IMAGES:
        parser.error(f'--batch must be at most {IMAGES}, the number of images, got {args.batch}')
    rows = []
    for family in args.families:
        row = in_a_new_process(family, args.steps, args.settle, args.batch, args.image_size)
        row['growth %'] = grown = growth(row)
        if not row['failure'] and grown is not None and max(grown.values()) > TOLERANCE:
            row['failure'] = 'memory grew by {all:.1f} % (own {own:.1f} %)'.format(**grown)
        rows.append(row)
        print(f'{family}: {row["failure"] or "ok"}', file=sys.stderr, flush=True)
    print_table(rows, args.settle)
    settings = {name: getattr(args, name) for name in ('steps', 'settle', 'batch', 'image_size')}
    machine = dict(describe_machine(torch.device('cpu')), threads='1')
    write_json(args.out, dict(machine=machine, **settings, rows=rows))
    print('wrote', args.out)
    return int(any(row['failure'] for row in rows))


if __name__ == '__main__':
    sys.exit(main())
