"""Make tables and plots of the results that benchmark_backbone.py writes as JSON."""

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from ...commands.command_line import PICTURES, ToolParser
from ..figures import new_figure, save
from .published_top1 import peers, published

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
    found: Dict[str, Dict[str, float]] = {}
    for row in rows:
        lines.setdefault((row['candidate'], row['mode']), []).append(row)
    for (name, mode), line in lines.items():
        if len(line) > 1 and len({row['batch'] for row in line}) == 1:
            x = [math.log(row['side'] ** 2) for row in line]
            y = [math.log(row['median ms']) for row in line]
            found.setdefault(name, {})[mode] = float(np.polyfit(x, y, 1)[0])
    return found


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


def short(reason: str, most: int = 160) -> str:
    """The start of a failure's text, on one line. The JSON has the whole text."""
    line = ' '.join(reason.split())
    return line if len(line) <= most else line[:most] + ' …'


def print_tables(result: dict, base: str, markdown: bool = False) -> None:
    wide = 10_000 if markdown else None if sys.stdout.isatty() else 200
    console = Console(width=wide, highlight=False)
    for title, table in tables(result, base, box.MARKDOWN if markdown else box.HEAVY_HEAD):
        console.print(f'\n{title}:', markup=False)
        console.print(table)
    for name, by_mode in result['exponents'].items():
        slopes = ', '.join(f'{value:.2f} ({mode})' for mode, value in by_mode.items())
        console.print(f'{name}: time ~ pixels to the power of {slopes}', markup=False)


def where(result: dict) -> str:
    machine = result['machine']
    return machine.get('GPU') or f'{machine["CPU"]}, {machine["threads"]} threads'


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
                    *zip(*points), ls=LINES[result['modes'].index(mode) % len(LINES)],
                    marker=MARKERS[index % len(MARKERS)], lw=1.5 if index else 3,
                    color=colormap.colors[index % colormap.N], zorder=2 if index else 3,
                    label=label if mode == 'eager' else f'{label}, {mode}',
                )  # fmt: skip
        axis.set(xscale='log', yscale='log', xlabel='side of the image (pixels)', title=title)
        sides = sorted({row['side'] for row in rows if key != 'MB' or row['batch'] == batch})
        axis.set_xticks(sides, [str(side) for side in sides])
        axis.xaxis.minorticks_off()
        axis.yaxis.set_major_formatter('{x:g}')
        axis.grid(alpha=0.3, which='both')
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=3)
    batches = [f'{batch} images of {side}²' for side, batch in result['sizes'] if batch > 1]
    step = 'Forward and backward' if result['train'] else 'Forward pass'
    figure.suptitle('; '.join([f'{step}, {where(result)}', *batches]), fontsize='medium')
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
    found: Dict[str, Tuple[float, int]] = {}
    for row in measured(result):
        paper = published().get(row['candidate'])
        if row['mode'] == mode and paper is not None and paper.side == row['side']:
            found[row['candidate']] = max(
                found.get(row['candidate'], (0.0, 0)),
                (row['images per second'], row['batch']),
            )
    return found


def plot_top1(result: dict, path: Path) -> None:
    """Plot published top-1 over measured images a second. Better models are up and to the right."""
    modes = result['modes']
    figure, axes = new_figure(1, len(modes), (9 * len(modes), 7), squeeze=False)
    for axis, mode in zip(axes[0], modes):
        points = top1_points(result, mode)
        draw_families(axis, {name: speed for name, (speed, _) in points.items()})
        batches = sorted({batch for _, batch in points.values()})
        axis.set(
            xlabel=f'images a second, measured, batch {" or ".join(map(str, batches)) or "-"}',
            ylabel='top-1, published (%), not reproduced here', title=mode,
        )  # fmt: skip
    step = 'forward and backward' if result['train'] else 'forward'
    figure.suptitle(f'{step}; {where(result)}', fontsize='medium')
    absent = not_measured(result)
    if absent:
        figure.supxlabel(f'not measured here: {", ".join(absent)}', fontsize='x-small', wrap=True)
    save(figure, path)


def draw_families(axis: 'Axes', speeds: Dict[str, float]) -> None:
    """Draw a line through the sizes of each family, and the best top-1 at each speed.

    Hollow points are mmlaplace's versions of other projects' models.
    """
    from matplotlib.ticker import LogFormatter

    papers = {name: published()[name] for name in speeds}
    families = list(dict.fromkeys(paper.family for paper in published().values()))
    for family in (each for each in families if each in {p.family for p in papers.values()}):
        index = families.index(family)
        names = sorted((n for n in papers if papers[n].family == family), key=speeds.__getitem__)
        ours = papers[names[0]].ours
        twins = [name for name in names if is_twin(name)]
        style: Dict[str, Any] = dict(marker=MARKERS[index % len(MARKERS)], zorder=3 if ours else 2)
        style['color'] = f'C{index % 10}' if ours else str(0.2 + 0.07 * (index % 8))
        own = [name for name in names if name not in twins]
        axis.semilogx(
            [speeds[name] for name in own], [papers[name].top1 for name in own], label=family,
            ms=9 if ours else 6, lw=2 if ours else 1, ls='-' if ours else '--', **style,
        )  # fmt: skip
        axis.plot(
            [speeds[name] for name in twins], [papers[name].top1 for name in twins],
            ls='', mfc='none', ms=6, **style,
        )  # fmt: skip
    front, best = [], 0.0
    for name in sorted(speeds, key=speeds.__getitem__, reverse=True):
        if papers[name].top1 > best:
            best = papers[name].top1
            front.append((speeds[name], best))
    if front:
        axis.step(*zip(*front), where='pre', color='C2', lw=6, alpha=0.2, label='best of all')
        axis.legend(fontsize='x-small')
    for tick in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
        tick(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.4)))
    axis.margins(x=0.12)
    axis.grid(alpha=0.3, which='both')
    write_labels(
        axis,
        [
            (f'{name} (our twin)' if is_twin(name) else paper.model, (speeds[name], paper.top1))
            for name, paper in papers.items()
        ],
    )


def is_twin(name: str) -> bool:
    """Whether a candidate is mmlaplace's version of another project's model."""
    return not published()[name].ours and ':' not in name


# Positions of a label relative to its point, in typographic points.
PLACES = ((5, 4), (5, -10), (-5, 4), (-5, -10), (5, 12), (-5, 12), (5, -18), (-5, -18))


def write_labels(axis: 'Axes', points: List[Tuple[str, Tuple[float, float]]]) -> None:
    """Label each point, in the first of ``PLACES`` where the label covers no other label."""
    figure: Any = axis.figure
    figure.draw_without_rendering()  # computes the final layout

    def write(label: str, point: Tuple[float, float], place: Tuple[int, int]) -> Any:
        return axis.annotate(
            label, point, place, textcoords='offset points', fontsize='x-small',
            ha='left' if place[0] > 0 else 'right',
        )  # fmt: skip

    taken: List[Any] = []
    for label, point in points:
        for place in PLACES:
            text = write(label, point, place)
            box = text.get_window_extent()
            if not any(map(box.overlaps, taken)):
                break
            text.remove()
        else:
            box = write(label, point, PLACES[0]).get_window_extent()
        taken.append(box)


def not_measured(result: dict) -> List[str]:
    """Models of other projects that have no point in the plot of top-1."""
    there = {published()[name].model for mode in result['modes'] for name in
             top1_points(result, mode)}  # fmt: skip
    models = (published()[name].model for name in peers())
    return [model for model in models if model not in there]


def add_report_options(parser: ToolParser) -> None:
    """Add the arguments of the report. The benchmark and the report share them."""
    parser.add_argument(
        '--base', metavar='CANDIDATE', help='what the others are compared with; default: the first'
    )
    parser.add_output('--plot', suffixes=PICTURES, help='draw time and memory over the size')
    parser.add_output(
        '--plot-top1', suffixes=PICTURES, help='draw published top-1 over measured speed'
    )


def check_report_options(parser: ToolParser, args: argparse.Namespace, names: List[str]) -> None:
    """End the tool before any measurement if a candidate or matplotlib is missing."""
    args.base = args.base or names[0]
    if args.base not in names:
        parser.error(f'--base must be one of {", ".join(names)}, got {args.base}')
    if (args.plot or args.plot_top1) and importlib.util.find_spec('matplotlib') is None:
        parser.error('plots need matplotlib; install it with pip install matplotlib')


def draw(result: dict, plot_to: Optional[Path], top1_to: Optional[Path]) -> None:
    """Write the requested plots, and print which models are missing in the plot of top-1."""
    if plot_to is not None:
        plot(result, plot_to)
    if top1_to is not None:
        plot_top1(result, top1_to)
        absent = not_measured(result)
        if absent:
            sys.stdout.write(f'{top1_to} is without {", ".join(absent)}: not measured here\n')
