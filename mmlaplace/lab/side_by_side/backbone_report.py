"""Make tables and plots of the results that benchmark_backbone.py writes as JSON."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from ..figures import new_figure, save, where
from .published_top1 import published

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = ('-', '--', ':', '-.')  # a line style for each mode
MARKERS = 'os^Dv<>PX*hpd8'  # a marker for each family or candidate


def measured(result: dict) -> List[dict]:
    """The rows of a result that were measured without a failure."""
    return [row for row in result['rows'] if not row['failure']]


def exponents(rows: List[dict]) -> Dict[str, Dict[str, float]]:
    """Fit the exponent of time over pixels by least squares, for each candidate and mode.

    A candidate needs at least two sizes with the same batch size.
    """
    lines: Dict[Tuple[str, str], List[dict]] = {}
    exponents_by_name: Dict[str, Dict[str, float]] = {}
    for row in rows:
        lines.setdefault((row['candidate'], row['mode']), []).append(row)
    for (name, mode), line in lines.items():
        if len(line) > 1 and len({row['batch'] for row in line}) == 1:
            x = [math.log(row['side'] ** 2) for row in line]
            y = [math.log(row['median ms']) for row in line]
            exponent = float(np.polyfit(x, y, 1)[0])
            exponents_by_name.setdefault(name, {})[mode] = exponent
    return exponents_by_name


def tables(result: dict, base: str, style: box.Box) -> Iterator[Tuple[str, Table]]:
    """A title and a table for each size, with a row per candidate and columns for each mode."""
    modes, step = result['modes'], 'forward and backward' if result['train'] else 'forward'
    for side, batch in result['sizes']:
        rows = {
            (row['candidate'], row['mode']): row
            for row in result['rows']
            if (row['side'], row['batch']) == (side, batch)
        }
        title = (
            f'{side} x {side} pixels, batch {batch}, {step}: ms an image, images a second, '
            f'x the time of {base}, peak MB'
        )
        table = Table(box=style)
        for header in ('', 'M params', 'top-1'):
            table.add_column(header, justify='right' if header else 'left', no_wrap=True)
        for mode in modes:
            for header in (f'{mode} ms', 'images/s', 'x', 'MB'):
                table.add_column(header, justify='right')
        failed = any(row['failure'] for row in rows.values()) or result['failures']
        if failed:
            table.add_column('not measured')
        for name in result['candidates']:
            model, paper = result['models'].get(name), published().get(name)
            cells = [name, '-' if model is None else f'{model["parameters"] / 1e6:.1f}']
            cells.append(f'{paper.top1:.1f}' if paper and paper.side == side else '-')
            reasons = [result['failures'][name]] if name in result['failures'] else []
            for mode in modes:
                row = rows.get((name, mode))
                if row is not None and row['failure']:
                    reasons.append(f'{mode}: {row["failure"]}')
                cells += mode_cells(row, rows.get((base, mode)))
            table.add_row(*cells, *(['; '.join(map(short, reasons))] if failed else []))
        yield title, table


def mode_cells(row: Optional[dict], base: Optional[dict]) -> Tuple[str, ...]:
    """Cells for time, speed, time relative to ``base``, and memory."""
    if row is None or row['failure']:
        return ('-',) * 4
    ratio = '-' if base is None or base['failure'] else row['median ms'] / base['median ms']
    return (
        f'{row["ms per image"]:.1f}',
        f'{row["images per second"]:.1f}',
        ratio if isinstance(ratio, str) else f'{ratio:.2f}',
        '-' if row['MB'] is None else f'{row["MB"]:.0f}',
    )


def short(reason: str) -> str:
    """The start of a failure's text, on one line. The JSON has the whole text."""
    line = ' '.join(reason.split())
    return line if len(line) <= 160 else line[:160] + ' …'


def print_tables(result: dict, base: str, markdown: bool = False) -> None:
    wide = 10_000 if markdown else None if sys.stdout.isatty() else 200
    console = Console(width=wide, highlight=False)
    for title, table in tables(result, base, box.MARKDOWN if markdown else box.HEAVY_HEAD):
        console.print(f'\n{title}:', markup=False)
        console.print(table)
    for name, by_mode in result['exponents'].items():
        slopes = ', '.join(f'{value:.2f} ({mode})' for mode, value in by_mode.items())
        console.print(f'{name}: time ~ pixels to the power of {slopes}', markup=False)


def plot(result: dict, path: Path) -> None:
    """Plot time and memory over the side of the image, the slowest first in the legend.

    Memory is that of the batch size of the largest images.
    """
    from matplotlib import colormaps

    rows = measured(result)
    lines: Dict[Tuple[str, str], List[dict]] = {}
    for row in sorted(rows, key=lambda row: row['side']):
        lines.setdefault((row['candidate'], row['mode']), []).append(row)
    slowest = sorted(lines, key=lambda key: lines[key][-1]['ms per image'], reverse=True)
    figure, axes = new_figure(1, 2, (8, 4 + 0.09 * len(lines)))
    # Typed Any, as only listed colormaps have ``colors``.
    colormap: Any = colormaps['tab10' if len(result['candidates']) <= 10 else 'tab20']
    titles = ('time of an image (ms)', 'peak memory (MB)')
    for axis, key, title in zip(axes, ('ms per image', 'MB'), titles):
        for name, mode in slowest:
            index = result['candidates'].index(name)
            label = f'{title_of(name)}, {result["models"][name]["parameters"] / 1e6:.0f} M'
            batch = max(rows, key=lambda row: row['side'])['batch']
            points = [
                (row['side'], row[key])
                for row in lines[name, mode]
                if row[key] and (key != 'MB' or row['batch'] == batch)
            ]
            if points:
                axis.plot(
                    *zip(*points),
                    ls=LINES[result['modes'].index(mode) % len(LINES)],
                    marker=MARKERS[index % len(MARKERS)],
                    lw=1.5 if index else 3,
                    color=colormap.colors[index % colormap.N],
                    zorder=2 if index else 3,
                    label=label if mode == 'eager' else f'{label}, {mode}',
                )
        axis.set(xscale='log', yscale='log', xlabel='side of the image (pixels)', title=title)
        sides = sorted({row['side'] for row in rows if key != 'MB' or row['batch'] == batch})
        axis.set_xticks(sides, [str(side) for side in sides])
        axis.xaxis.minorticks_off()
        axis.yaxis.set_major_formatter('{x:g}')
        axis.grid(alpha=0.3, which='both')
    title = 'parameters of the backbone, without the head of a classifier'
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc='outside lower center', ncols=3, title=title)
    batches = [f'{side}² in batches of {batch}' for side, batch in result['sizes'] if batch > 1]
    step = 'Forward and backward' if result['train'] else 'Forward pass'
    figure.suptitle('; '.join([f'{step}, {where(result["machine"])}', *batches]), fontsize='medium')
    save(figure, path, dpi=130)


def title_of(candidate: str) -> str:
    """The name of a candidate, of another project's model as published."""
    package, colon, name = candidate.partition(':')
    if not colon:
        return candidate
    return f'{published()[candidate].model if candidate in published() else name} of {package}'


def top1_points(result: dict, mode: str) -> Dict[str, Tuple[float, int]]:
    """The speed in images a second and its batch size, for each candidate with a published top-1.

    The speed is that at the image size of the published top-1, for the fastest batch size.
    """
    points: Dict[str, Tuple[float, int]] = {}
    for row in measured(result):
        paper = published().get(row['candidate'])
        if row['mode'] == mode and paper is not None and paper.side == row['side']:
            point = (row['images per second'], row['batch'])
            points[row['candidate']] = max(points.get(row['candidate'], (0.0, 0)), point)
    return points


def plot_top1(result: dict, path: Path) -> None:
    """Plot published top-1 over measured images a second. Better models are up and to the right."""
    modes = result['modes']
    figure, axes = new_figure(1, len(modes), (9 * len(modes), 7), squeeze=False)
    for axis, mode in zip(axes[0], modes):
        points = top1_points(result, mode)
        lines: Dict[str, List[Tuple[float, float]]] = {}
        for name, (speed, _) in points.items():
            family = f'{published()[name].family} of {name.rpartition(":")[0] or "mmlaplace"}'
            lines.setdefault(family, []).append((speed, published()[name].top1))
        draw_families(axis, lines)
        batches = sorted({batch for _, batch in points.values()})
        axis.set(
            xlabel=f'images a second, measured, batch {" or ".join(map(str, batches)) or "-"}',
            ylabel='top-1, published (%), not reproduced here',
            title=mode,
        )
        if points:
            axis.legend(fontsize='small')
    step = 'forward and backward' if result['train'] else 'forward'
    figure.suptitle(f'{step}; {where(result["machine"])}', fontsize='medium')
    save(figure, path)


def draw_families(
    axis: 'Axes',
    lines: Dict[str, List[Tuple[float, float]]],
    others: Sequence[Tuple[float, float]] = (),
    grey: bool = False,
) -> None:
    """Draw a line through the sizes of each family, and the best top-1 at each speed.

    Args:
        axis: Where to draw.
        lines: Points of images a second and top-1, by the name of the family.
        others: Points of no family, which are not drawn. Default: ().
        grey: Whether families none of whose sizes is the best at its speed are grey, without a
            name. Default: False.
    """
    points = list(others)
    for line in lines.values():
        points += line
    front: List[Tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    if front:
        axis.step(*zip(*front), where='pre', color='C2', lw=8, alpha=0.2, label='best at its speed')
    coloured = 0
    for family in sorted(lines, key=lambda family: -max(top1 for _, top1 in lines[family])):
        style: Dict[str, Any] = dict(color='0.8', marker='.', zorder=1)
        if not grey or set(lines[family]) & set(front):
            marker = MARKERS[coloured % len(MARKERS)]
            style = dict(color=f'C{coloured % 10}', marker=marker, label=family)
            coloured += 1
        axis.plot(*zip(*sorted(lines[family])), **style)
    axis.set_xscale('log')
    axis.xaxis.set_major_formatter('{x:g}')
    axis.grid(alpha=0.3, which='both')
