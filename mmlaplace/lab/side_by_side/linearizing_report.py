"""The table and the plot of the study of linearized classifiers."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List

import numpy as np

from ...writing import write_whole
from ..figures import new_figure, save
from .attention_report import markdown
from .linearizing_study import COLUMNS
from .seed_differences import by_attention, half_width, mean_top1, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = dict(
    softmax='softmax', swapped='swapped', layers='layer by layer', distilled='distilled',
    scratch='from scratch',
)  # fmt: skip


def table(results: List[dict]) -> str:
    """Means over the seeds, and the advantage of the distillation with its 95 % interval."""
    rows = []
    for name, runs in by_attention(results, 'distilled').items():
        gains = [run['top1']['distilled'] - run['top1']['scratch'] for run in runs]
        interval = f' ± {half_width(gains):.2f}' if len(gains) > 1 else ''
        rows.append([
            short(name), *(f'{mean_top1(runs, column):.2f}' for column in COLUMNS),
            f'{statistics.mean(gains):+.2f}{interval}',
            f'{100 * runs[0]["kept"]:.1f}', str(len(runs)),
        ])  # fmt: skip
    header = ['attention', *TITLES.values(), 'distilled − from scratch', 'kept, %', 'seeds']
    return markdown(header, rows)


def plot(results: List[dict], path: Path) -> None:
    """Plot the accuracies of each attention, and how they grow with the minutes of training."""
    found = by_attention(results, 'distilled')
    figure, (left, right) = new_figure(1, 2, (9.5, 2 + 0.25 * len(found)))
    plot_accuracies(found, left)
    plot_minutes(found, right)
    save(figure, path)


def plot_accuracies(found: Dict[str, List[dict]], axis: 'Axes') -> None:
    """Means as dots, seeds as bars."""
    axis.axvline(mean_softmax(found), color='black', linewidth=0.8, label='softmax')
    colors = dict(zip(COLUMNS[1:], ('#d62728', '#ff9896', '#1f77b4', '#7f7f7f')))
    for column, color in colors.items():
        for row, runs in enumerate(found.values()):
            axis.plot(
                mean_top1(runs, column), row, 'o', color=color, label=TITLES[column] * (row == 0)
            )
            values = [run['top1'][column] for run in runs]
            axis.plot(values, [row] * len(values), '|', color=color, alpha=0.6)
    axis.set_yticks(range(len(found)), [short(name) for name in found])
    axis.set(xlabel='top-1 on Fashion-MNIST (%)')
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
    axis.legend(loc='upper center', bbox_to_anchor=(0.5, -0.16), ncols=3)


def mean_softmax(found: Dict[str, List[dict]]) -> float:
    """Mean top-1 of the softmax models."""
    return statistics.mean(run['top1']['softmax'] for runs in found.values() for run in runs)


def plot_minutes(found: Dict[str, List[dict]], axis: 'Axes') -> None:
    """Means over the seeds: a line for each attention, one colour for each kind of training."""
    axis.axhline(mean_softmax(found), color='black', linewidth=0.8, label='softmax')
    for kind, color in (('distilled', '#1f77b4'), ('scratch', '#7f7f7f')):
        for number, runs in enumerate(found.values()):
            seconds, top1 = np.mean([run['points'][kind] for run in runs], axis=0).T
            axis.plot(seconds / 60, top1, color=color, marker='.', alpha=0.5,
                      label=TITLES[kind] if number == 0 else None)  # fmt: skip
    axis.set(xlabel='minutes of one thread', ylabel='top-1 (%), a line for each attention')
    axis.grid(alpha=0.3)
    axis.legend(loc='lower right')


def write_report(results: List[dict], folder: Path) -> List[Path]:
    """Write linearized.md and linearized.png into a folder, and return their paths."""
    written = [folder / 'linearized.md', folder / 'linearized.png']
    write_whole(written[0], table(results) + '\n')
    plot(results, written[1])
    return written
