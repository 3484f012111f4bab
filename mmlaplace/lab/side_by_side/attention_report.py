"""Make tables and plots of the results that ``compare trainings`` writes as JSON."""

import math
import statistics
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Tuple

from ...writing import markdown_table, write_whole
from ..figures import new_figure, save
from .attention_study import ABLATIONS, STUDIES
from .seed_differences import (
    by_attention,
    differences,
    half_width,
    mean_top1,
    seeds_text,
    short,
)

MATRIX_HEADERS = {
    'row_sum': 'row sum',
    'row_sum_deviation': '± over rows',
    'negative': 'negative',
    'entropy': 'entropy',
    'sharpness': 'largest',
    'rank': 'rank',
    'row_distance': 'rows apart',
    'near': 'near',
    'middle': 'middle',
    'far': 'far',
}


def markdown(header: List[str], rows: List[List[str]]) -> str:
    """A table of numbers, whose first column has names."""
    return markdown_table(header, rows, '---:')


def spread(values: List[float]) -> str:
    """Text with the mean, the sample standard deviation and the single values."""
    mean = f'{statistics.mean(values):.1f}'
    if len(values) < 2:
        return mean
    single = ', '.join(f'{value:.1f}' for value in values)
    return f'{mean} ± {statistics.stdev(values):.1f} ({single})'


def accuracy_table(results: List[dict]) -> str:
    found = by_attention(results)
    columns = list(results[0]['top1'])
    rows = []
    for name, runs in found.items():
        top1 = (spread([run['top1'][column] for run in runs]) for column in columns)
        counts = (f'{runs[0]["parameters"] / 1e3:.0f}', f'{runs[0]["macs"] / 1e6:.1f}')
        # Runs that were interrupted and resumed have no time.
        known = [run['seconds'] for run in runs if run['seconds'] is not None]
        rows.append(
            [
                short(name),
                *top1,
                *counts,
                f'{statistics.median(known):.0f}' if known else '-',
            ]
        )
    return markdown(['attention', *columns, 'K params', 'M MACs', 's a run'], rows)


def ablation_table(results: List[dict], names: Sequence[str]) -> str:
    """A table of what options do: the differences from the first name, with its seeds.

    Of each name, seeds that the first does not have are left out.

    Args:
        results: Results of one group.
        names: The attention, and the same with other options.

    Returns:
        The table. It is empty if no name shares two seeds with the first.
    """
    found, apart = by_attention(results), differences(results, names[0])
    seeds = {run['settings']['seed'] for run in found.get(names[0], ())}
    paired = {
        name: [run for run in runs if run['settings']['seed'] in seeds]
        for name, runs in found.items()
    }
    columns = list(results[0]['top1'])
    rows = [
        [
            name,
            *(f'{mean_top1(paired[name], column):.2f}' for column in columns),
            f'{statistics.mean(apart[name]):+.2f}' if name in apart else '',
            f'± {half_width(apart[name]):.2f}' if name in apart else '',
            str(len(apart.get(name, found[name]))),
        ]
        for name in names
        if name in apart or (name == names[0] and apart)
    ]
    header = ['attention', *columns, 'difference', '95 % interval', 'seeds']
    return markdown(header, rows) if len(rows) > 1 else ''


def difference_table(results: List[dict]) -> str:
    """A table of the differences from softmax, the largest first. It is empty without any."""
    rows = [
        [short(name), f'{statistics.mean(one):+.2f}', f'± {half_width(one):.2f}', str(len(one))]
        for name, one in differences(results).items()
    ]
    header = ['attention', 'difference from softmax', '95 % interval', 'seeds']
    return markdown(header, rows) if rows else ''


def matrix_table(results: List[dict], stage: int) -> str:
    """A table of the matrix statistics of a stage, for the first seed of each attention."""
    rows = []
    for name, runs in by_attention(results).items():
        found = next((m for m in runs[0]['matrices'] if m['stage'] == stage), None)
        cells = ['-' if found is None else f'{found[key]:.2g}' for key in MATRIX_HEADERS]
        # Sizes of the attention's term in units of the local branch's, of all blocks.
        ratios = [t['mixed'] / t['local'] for t in runs[0]['terms'] if t.get('local', 0) > 0]
        cells.append(f'{min(ratios):.2g} to {max(ratios):.2g}' if ratios else '-')
        rows.append([short(name), *cells])
    return markdown(['attention', *MATRIX_HEADERS.values(), 'term / local'], rows)


def number(value: float) -> str:
    return f'{value:.0f}' if value >= 10 else f'{value:.2g}'


def cost_table(costs: Dict[str, dict], sizes: List[int], key: str, scale: float) -> str:
    """A table of the time or memory of forward and training passes at each image size.

    Args:
        costs: By attention and pass, the measured rows and the exponent of time over pixels.
        sizes: Sides of the images.
        key: ``'seconds'``, which also gives a column of exponents, or ``'MB'``.
        scale: Factor of the values, such as 1e3 for milliseconds.
    """
    rows = []
    for name, cost in costs.items():
        cells = [short(name)]
        for found in cost.values():
            measured = {row['side']: row[key] * scale for row in found['rows']}
            cells += [number(measured[side]) if side in measured else '-' for side in sizes]
            if key == 'seconds':
                steep = found['exponent']
                cells.append('-' if steep is None or math.isnan(steep) else f'{steep:.2f}')
        rows.append(cells)
    last = ['exponent'] if key == 'seconds' else []
    headers = [f'{side}²' for side in sizes] + last
    names = [f'{headers[0]} forward', *headers[1:], f'{headers[0]} training', *headers[1:]]
    return markdown(['attention', *names], rows)


def left_out(costs: Dict[str, dict]) -> Iterator[str]:
    """A line for each image size that was not measured, with the reason."""
    for name, cost in costs.items():
        for of_pass, found in cost.items():
            for side, reason in found['left_out'].items():
                yield f'- {short(name)}, {of_pass}, {side}²: {reason}'


def sections(content: dict) -> Iterator[Tuple[str, str]]:
    """The title and the Markdown of each table."""
    for key, results in groups(content['results']).items():
        for question, names in ABLATIONS.items():
            if table := ablation_table(results, names):
                yield f'{question}, seeds paired: {key}', table
        if text := seeds_text(results):
            yield f'what differences show: {key}', text
        results = with_defaults(results)
        if not results:
            continue
        yield f'top-1 in %, mean ± s (seeds): {key}', accuracy_table(results)
        if table := difference_table(results):
            yield f'points of top-1 beside softmax, seeds paired: {key}', table
        stages = sorted({m['stage'] for result in results for m in result['matrices']})
        if stages:
            title = f'matrices of stage {stages[0]}, first seed: {key}'
            yield title, matrix_table(results, stages[0])
    for host, costs in costs_by_host(content['costs']).items():
        rows = (
            row for cost in costs.values() for of_pass in cost.values() for row in of_pass['rows']
        )
        sizes = sorted({row['side'] for row in rows})
        yield f'time in ms, batch 1, one thread: {host}', cost_table(costs, sizes, 'seconds', 1e3)
        yield f'peak memory of tensors in MB: {host}', cost_table(costs, sizes, 'MB', 1)
        yield f'not measured: {host}', '\n'.join(left_out(costs)) or 'nothing'


def costs_by_host(made: List[dict]) -> Dict[str, Dict[str, dict]]:
    """What was measured, by host and attention."""
    found: Dict[str, Dict[str, dict]] = {}
    for one in made:
        found.setdefault(one['settings']['host'], {})[one['settings']['attention']] = one['cost']
    return found


def with_defaults(results: List[dict]) -> List[dict]:
    """Results of attentions without options, which the tables of all attentions show."""
    return [result for result in results if '=' not in result['settings']['attention']]


def groups(results: List[dict]) -> Dict[str, List[dict]]:
    """Group results that one can compare: the same host, study, epochs and use of the local branch.

    The key names epochs that are not those of the study.
    """
    found: Dict[str, List[dict]] = {}
    for result in results:
        settings = result['settings']
        named = 'lepe_kernel' in settings['attention']  # then it is an option to be compared
        off = settings['attn_cfg'].get('lepe_kernel') == 0 and not named
        key = f'{settings["host"]}, {settings["study"]}' + ', local branch off' * off
        epochs = [phase['epochs'] for phase in settings['phases']]
        if epochs != [phase.epochs for phase in STUDIES[settings['study']].phases]:
            key += f', {" and ".join(map(str, epochs))} epochs'
        found.setdefault(key, []).append(result)
    return found


def plot_accuracy(results: List[dict], title: str, path: Path) -> None:
    """Plot top-1 of each attention in the first and last test column: every seed, and the mean."""
    found = by_attention(results)
    names, columns = list(found), list(results[0]['top1'])
    figure, axis = new_figure(1, 1, (7, 1.4 + 0.2 * len(names)))
    for column, color in ((columns[0], 'tab:blue'), (columns[-1], 'tab:orange')):
        values = [[run['top1'][column] for run in found[name]] for name in names]
        means = [statistics.mean(one) for one in values]
        axis.plot(means, range(len(names)), 'o', color=color, label=f'{column}, mean')
        for place, one in enumerate(values):
            axis.plot(one, [place] * len(one), '|', color=color, alpha=0.6)
    axis.set_yticks(range(len(names)), [short(name) for name in names], fontsize=8)
    axis.set(xlabel='held-out top-1 (%); bars are seeds', title=title, ylim=(len(names), -1))
    axis.grid(alpha=0.3)
    figure.legend(loc='outside lower center', ncols=2)
    save(figure, path)


def plot_cost(costs: Dict[str, dict], path: Path) -> None:
    """Plot forward time and memory: a row for each attention, and a point for each image size.

    The fastest attention is at the top.
    """
    from matplotlib import colormaps

    found = {
        name: {row['side']: row for row in cost['forward']['rows']} for name, cost in costs.items()
    }
    sides = sorted({side for rows in found.values() for side in rows})

    def slowness(name: str) -> Tuple[int, float]:
        """Sort key: smaller for attentions measured at larger sizes, then for faster ones."""
        largest = max(found[name], default=0)
        return -largest, found[name][largest]['seconds'] if largest else 0.0

    names = sorted(found, key=slowness, reverse=True)
    figure, axes = new_figure(1, 2, (8, 1.6 + 0.2 * len(names)), sharey=True)
    colors = colormaps['viridis_r']
    for axis, key, scale in zip(axes, ('seconds', 'MB'), (1e3, 1)):
        for index, side in enumerate(sides):
            points = [
                (found[name][side][key] * scale, row)
                for row, name in enumerate(names)
                if side in found[name]
            ]
            color = colors((index + 0.5) / len(sides))
            axis.plot(*zip(*points), 'o', markersize=5, color=color, label=f'{side}²')
        axis.set(xscale='log', ylim=(-1, len(names)))
        axis.grid(alpha=0.3)
    axes[0].set_yticks(range(len(names)), [short(name) for name in names], fontsize=8)
    axes[0].set_xlabel('ms an image, forward')
    axes[1].set_xlabel('peak memory of tensors (MB), forward')
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=len(sides), fontsize=8)
    save(figure, path)


def write_report(content: dict, folder: Path) -> List[Path]:
    """Write tables.md and the plots into a folder, and return their paths."""
    text = '\n\n'.join(f'## {title}\n\n{table}' for title, table in sections(content)) + '\n'
    tables = folder / 'tables.md'
    write_whole(tables, text)
    written = [tables]
    for key, results in groups(with_defaults(content['results'])).items():
        name = key.replace(', ', '_').replace(' ', '-')
        written.append(folder / f'top1_{name}.png')
        plot_accuracy(results, key, written[-1])
    for host, costs in costs_by_host(content['costs']).items():
        written.append(folder / f'cost_{host}.png')
        plot_cost(costs, written[-1])
    return written
