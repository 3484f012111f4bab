"""The table and the plot of the study of linearized classifiers."""

import statistics
from pathlib import Path
from typing import Dict, List

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt

from .attention_report import half_width, markdown, save, short
from .linearizing_study import COLUMNS

TITLES = dict(
    softmax='softmax', swapped='swapped', layers='layer by layer', distilled='distilled',
    scratch='from scratch',
)  # fmt: skip


def grouped(results: List[dict]) -> Dict[str, List[dict]]:
    """Runs by attention, the most accurate after the distillation first, each sorted by seed."""
    found: Dict[str, List[dict]] = {}
    for result in sorted(results, key=lambda result: result['settings']['seed']):
        found.setdefault(result['settings']['attention'], []).append(result)
    return dict(sorted(found.items(), key=lambda item: -mean(item[1], 'distilled')))


def mean(runs: List[dict], column: str) -> float:
    return statistics.mean(run['top1'][column] for run in runs)


def table(results: List[dict]) -> str:
    """Means over the seeds, and the advantage of the distillation with its 95 % interval."""
    rows = []
    for name, runs in grouped(results).items():
        gains = [run['top1']['distilled'] - run['top1']['scratch'] for run in runs]
        interval = f' ± {half_width(gains):.2f}' if len(gains) > 1 else ''
        rows.append([
            short(name), *(f'{mean(runs, column):.2f}' for column in COLUMNS),
            f'{statistics.mean(gains):+.2f}{interval}',
            f'{100 * runs[0]["kept"]:.1f}', str(len(runs)),
        ])  # fmt: skip
    header = ['attention', *TITLES.values(), 'distilled − from scratch', 'kept, %', 'seeds']
    return markdown(header, rows)


def plot(results: List[dict], path: Path) -> None:
    """Plot the accuracies of each attention: means as dots, seeds as bars."""
    found = grouped(results)
    figure, axis = plt.subplots(figsize=(8, 1.4 + 0.35 * len(found)), layout='constrained')
    colors = dict(zip(COLUMNS, ('black', '#d62728', '#ff9896', '#1f77b4', '#7f7f7f')))
    for column, color in colors.items():
        for row, runs in enumerate(found.values()):
            axis.plot(mean(runs, column), row, 'o', color=color, label=TITLES[column] * (row == 0))
            values = [run['top1'][column] for run in runs]
            axis.plot(values, [row] * len(values), '|', color=color, alpha=0.6)
    axis.set_yticks(range(len(found)), [short(name) for name in found], fontsize=8)
    axis.set(xlabel='top-1 on the test images of Fashion-MNIST (%)')
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
    figure.legend(loc='outside lower center', ncols=len(COLUMNS), fontsize=8)
    save(figure, path)


def write_report(results: List[dict], folder: Path) -> List[Path]:
    """Write linearized.md and linearized.png into a folder, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / 'linearized.md', folder / 'linearized.png']
    written[0].write_text(table(results) + '\n')
    plot(results, written[1])
    return written
