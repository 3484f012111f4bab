"""The pictures of a comparison."""

import statistics
from pathlib import Path
from typing import Dict, List

from ..figures import new_figure, save
from ..side_by_side.seed_differences import by_attention
from .plan import BACKBONES

YOURS = 'black'


def draw_costs(costs: Dict[str, dict], yours: str, path: Path) -> None:
    """Time of a forward pass, and memory of a training pass, over the side of the image."""
    from matplotlib import colormaps
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    others = colormaps['Dark2']
    figure, axes = new_figure(1, 2, (9, 3.8))
    passes = (
        ('forward', 'seconds', 1e3, 'ms, one image, forward'),
        ('forward and backward', 'MB', 1, 'MB of tensors, one image, training'),
    )
    sides = sorted({row['side'] for cost in costs.values() for row in cost['forward']['rows']})
    for axis, (name, key, scale, title) in zip(axes, passes):
        for number, (label, cost) in enumerate(costs.items()):
            rows = cost[name]['rows']
            color, width = (YOURS, 3) if label == yours else (others(number % 8), None)
            axis.plot(
                [r['side'] for r in rows],
                [r[key] * scale for r in rows],
                'o-',
                label=label,
                color=color,
                linewidth=width,
            )
        axis.set(xscale='log', yscale='log', title=title)
        axis.set_xticks(sides, [f'{side}²' for side in sides], minor=False)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:g}'))
        axis.yaxis.set_minor_locator(NullLocator())
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside right center')
    save(figure, path)


def draw_images(images: Dict[str, List[dict]], yours: str, path: Path) -> None:
    """Top-1 of each attention in each backbone: a dot for a seed, and a bar for the mean."""
    rows = max(len(by_attention(results)) for results in images.values())
    size = 1.5 + 2.9 * len(images), 1.4 + 0.4 * rows
    figure, axes = new_figure(1, len(images), size, squeeze=False)
    for axis, (host, results) in zip(axes[0], images.items()):
        runs = by_attention(results)
        column = next(iter(results[0]['top1']))
        for place, (label, of_label) in enumerate(reversed(runs.items())):
            color = YOURS if label == yours else 'tab:gray'
            values = [run['top1'][column] for run in of_label]
            axis.plot(values, [place] * len(values), 'o', color=color, alpha=0.5)
            axis.plot(statistics.mean(values), place, '|', color=color, markersize=18, mew=3)
        axis.set_yticks(range(len(runs)), list(reversed(runs)))
        axis.set(xlabel='held-out top-1 (%)', title=BACKBONES[host], ylim=(-0.6, len(runs) - 0.4))
        axis.grid(alpha=0.3)
    save(figure, path)
