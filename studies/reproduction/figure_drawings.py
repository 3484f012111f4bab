"""Draw the papers' figures in one style, from the numbers of figure_numbers.py."""

from typing import TYPE_CHECKING, Any, List, Sequence, Tuple

import numpy as np

from mmlaplace.lab.figures import new_figure, where

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = 'os^Dv<>P*X'
NOTE = 'published, not reproduced here'


def new(
    panels: int = 1, width: float = 4.2, height: float = 3.6, **options: Any
) -> Tuple['Figure', List['Axes']]:
    """A new figure with panels side by side."""
    figure, axes = new_figure(1, panels, (width * panels, height), squeeze=False, **options)
    for axis in axes[0]:
        axis.grid(alpha=0.3)
    return figure, list(axes[0])


def scatter(
    axis: 'Axes', points: List[dict], x: str, y: str = 'top-1', styled: Sequence[dict] = ()
) -> None:
    """Draw a line through each family, in colour for the paper's own and in grey for the others.

    The families of ``styled`` set the styles, so that a family looks the same in all panels.
    """
    kinds = {point['family']: point['kind'] for point in styled or points}
    for name, kind in kinds.items():
        line = sorted((p for p in points if p['family'] == name), key=lambda point: point[x])
        own = kind == 'own'
        peers = [other for other, its_kind in kinds.items() if (its_kind == 'own') == own]
        place = peers.index(name)
        axis.plot(
            [point[x] for point in line],
            [point[y] for point in line],
            label=name if line else None,
            marker=MARKERS[place % len(MARKERS)],
            ms=7 if own else 4,
            lw=2 if own else 1,
            ls='-' if own else ':',
            zorder=3 if own else 2,
            color=f'C{place}' if own else str(0.35 + 0.4 * place / len(peers)),
        )
    axis.margins(x=0.1, y=0.08)


def name_families(axis: 'Axes', points: List[dict], x: str) -> None:
    """Write the name of each family beside its largest model.

    The name is to the left for the paper's own families, and to the right for the others.
    """
    for name in dict.fromkeys(point['family'] for point in points):
        last = max((p for p in points if p['family'] == name), key=lambda point: point[x])
        own = last['kind'] == 'own'
        axis.annotate(
            name,
            (last[x], last['top-1']),
            (-7, 4) if own else (5, -9),
            textcoords='offset points',
            fontsize=8,
            ha='right' if own else 'left',
        )


def legend_below(figure: 'Figure', axis: 'Axes', columns: int) -> None:
    figure.legend(
        *axis.get_legend_handles_labels(), loc='outside lower center', ncols=columns, fontsize=7
    )


def draw_parameters(found: dict) -> 'Figure':
    twins = found['twins']
    figure, axes = new(2 if twins else 1)
    scatter(axes[0], found['published'], 'parameters')
    axes[0].set(xlabel='parameters (M)', ylabel='top-1 on ImageNet (%)', title=NOTE)
    for index, twin in enumerate(twins, 2):  # colours 0 and 1 are SOFT and SOFT++ on the left
        axes[1].plot(
            twin['parameters'],
            twin['top-1'],
            marker=MARKERS[index % len(MARKERS)],
            ms=8,
            ls='',
            color=f'C{index % 10}',
            label=twin['label'],
        )
    if twins:
        axes[1].set(
            xlabel='parameters (M)',
            ylabel='top-1 of digits (%)',
            title='small copies, trained here',
        )
        axes[1].legend(fontsize=8)
        axes[1].margins(0.2)
    legend_below(figure, axes[0], 6)
    return figure


def draw_memory(found: dict) -> 'Figure':
    figure, axes = new(2)
    for index, (name, line) in enumerate(found['lines'].items()):
        softmax, own = name.startswith('Transformer'), name == 'SOFT'
        for axis in axes if name != 'Transformer, matrices kept' else axes[:1]:
            axis.plot(
                [point['tokens'] for point in line],
                [point['MB'] for point in line],
                label=name,
                marker=MARKERS[index],
                color=f'C{index}',
                lw=2.5 if own else 1.5,
                ls='--' if softmax else '-',
            )
    for axis in axes:
        axis.set(xlabel='tokens', ylim=(0, None))
    layers = f'{found["depth"]} layer{"s" * (found["depth"] > 1)}'
    axes[0].set(
        ylabel='MB at the peak of a training pass',
        title=f'{layers}, {found["dims"]} channels, {found["heads"]} heads, batch 1',
    )
    axes[1].set_title('without the matrices')
    axes[0].legend(fontsize=8)
    return figure


def draw_speed(found: dict) -> 'Figure':
    figure, (axis,) = new(1, 7)
    points = [dict(p, speed=1 / p['seconds']) for p in found['points'] if 'seconds' in p]
    scatter(axis, points, 'speed')
    for point in points:
        axis.annotate(
            point['label'],
            (point['speed'], point['top-1']),
            (5, -9),
            fontsize=7,
            textcoords='offset points',
        )
    unit = 'images a second' if found['device'] != 'cpu' else 'images a second of processor time'
    axis.set(
        xlabel=f'{unit}, measured, batch {found["batch_size"]}',
        ylabel='top-1 on ImageNet (%)',
        title=f'top-1: {NOTE}\nspeed: {where(found["machine"])}',
    )
    axis.margins(x=0.15)
    axis.legend()
    return figure


def draw_speed_and_macs(found: dict) -> 'Figure':
    figure, (left, right) = new(2, 5.5, 5)
    scatter(left, found['points'], 'MACs')
    left.set(xlabel='MACs (G)', ylabel='top-1 on ImageNet (%)', title=NOTE, xscale='log')
    points = [dict(p, ms=1e3 * p['seconds']) for p in found['points'] if 'seconds' in p]
    scatter(right, points, 'ms', styled=found['points'])
    name_families(right, points, 'ms')
    right.margins(x=0.25)
    unit = 'ms' if found['device'] != 'cpu' else 'ms of processor time'
    right.set(
        xlabel=f'{unit} an image, measured, batch {found["batch_size"]}',
        ylabel='top-1 on ImageNet (%)',
        title=f'top-1: {NOTE}\ntime: {where(found["machine"])}',
    )
    legend_below(figure, left, 6)
    return figure


def draw_newton(found: dict) -> 'Figure':
    figure, axes = new(len(found['sets']), 3, sharey=True)
    for axis, (name, content) in zip(axes, found['sets'].items()):
        for index, line in enumerate(content['stages']):
            steps = np.arange(len(line['mean']))
            axis.plot(steps, line['mean'], color=f'C{index}', label=f'stage {line["stage"]}')
            axis.fill_between(steps, line['low'], line['high'], color=f'C{index}', alpha=0.15)
        axis.axvline(20, color='0.5', lw=1, ls=':')
        axis.set(title=f'{name}, {content["images"]} images', xlabel='iteration k', ylim=(0, None))
    axes[0].set_ylabel('|| A A$_k$ A $-$ A ||$_2$ / || A ||$_2$')
    axes[0].legend()
    return figure


def draw_eigenvalues(found: dict) -> 'Figure':
    figure, (left, right) = new(2)
    for index, stage in enumerate(found['stages']):
        label = f'stage {stage["stage"]}'
        for axis in (left, right):
            axis.plot(stage['values'], color=f'C{index}', label=label, marker='.', ms=3, lw=1)
    largest = max(stage['values'][0] for stage in found['stages'])
    right.set_yscale('log')
    right.set_ylim(1e-8 * largest, 3 * largest)
    number = len(found['stages'][0]['values'])
    left.set(xlabel='index', ylabel='eigenvalue', title=f'{number} landmarks of one image')
    right.set(xlabel='index', title='the same, logarithmic')
    left.legend()
    return figure


def draw_gates(found: dict) -> 'Figure':
    blocks = found['blocks']
    chosen = sorted({0, len(blocks) // 2, len(blocks) - 1})
    figure, grid = new_figure(
        1, 3 * len(chosen), (3.4 * len(chosen), 4.2), width_ratios=[1, 1, 0.18] * len(chosen)
    )
    for position, index in enumerate(chosen):
        block = blocks[index]
        panels = [np.array(block['same']), np.array(block['opposite'])]
        most = max(np.quantile(np.abs(panel), 0.98) for panel in panels)
        axes = grid[3 * position : 3 * position + 3]
        for axis, panel, name in zip(axes, panels, ('$G^s$', '$G^o$')):
            drawn = axis.imshow(panel, aspect='auto', cmap='RdBu_r', vmin=-most, vmax=most)
            axis.set(title=name, xlabel='channel')
            axis.set_yticks([])
        axes[0].set_ylabel(f'tokens, block {index + 1} of {len(blocks)}')
        figure.colorbar(drawn, cax=axes[2])
        axes[2].set_title(f'r = {block["correlation"]:.2f}', fontsize=9)
    return figure


def draw_rows(found: dict) -> 'Figure':
    figure, (left, right) = new(2)
    width = 0.8 / len(found['models'])
    for index, (label, blocks) in enumerate(found['models'].items()):
        first = next(iter(blocks.values()))
        keys = np.arange(1, first['keys'] + 1)
        left.plot(keys, np.array(first['weights']) * first['keys'], color=f'C{index}', label=label)
        places = np.arange(len(blocks)) + width * (index - (len(found['models']) - 1) / 2)
        right.bar(places, [block['entropy'] for block in blocks.values()], width, label=label)
        right.set_xticks(range(len(blocks)), list(blocks))
    left.set(
        xscale='log',
        yscale='log',
        xlabel='keys, from the largest weight to the smallest',
        ylabel='weight in units of equal weights',
        title='rows of the first block, mean',
    )
    left.set_ylim(bottom=1e-3)
    right.set(xlabel='stage.block', ylabel='entropy of a row / log n', title='all blocks')
    right.set_ylim(0, 1.05)
    left.legend()
    return figure
