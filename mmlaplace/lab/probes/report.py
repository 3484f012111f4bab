"""Tables and heat maps of the results of probes."""

import json
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...writing import write_whole
from ..figures import new_figure, save
from ..side_by_side.attention_report import markdown
from .prediction import TrainedHere
from .results import by_key
from .study import DISAGREE, REACHED, SOLVED, Cell, Study, cell, label
from .tasks import build_probe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSING = '–'
STAR = '*'  # seeds of the cell disagree
LUMINANCE = (0.2126, 0.7152, 0.0722)  # of red, green and blue, ITU-R BT.709
DARK = 0.45  # of white; darker cells have white texts
MARKS = {0.0: 'no', 0.5: 'partly', 1.0: 'yes'}  # of degrees
SIDES = (224, 512, 1024)  # of the images of the costs


class Column(NamedTuple):
    """A column of a table: a probe, tested on maps of a scale.

    Attributes:
        title: Its title.
        probe: The probe, as the config has it.
        scale: The scale of the test map.
        chance: Accuracy of a guess.
    """

    title: str
    probe: dict
    scale: str
    chance: float

    def level(self, accuracy: float) -> float:
        """An accuracy on a scale from 0, a guess, to 1."""
        return max(0.0, (accuracy - self.chance) / (1 - self.chance))


class Table(NamedTuple):
    """The accuracies of a study, the best attention first.

    Attributes:
        study: The study.
        columns: The columns.
        rows: The cells of each attention, in the order of the columns. None where no run is
            finished.
    """

    study: Study
    columns: List[Column]
    rows: Dict[str, List[Optional[Cell]]]

    def accuracy(self, attention: str, column: int) -> Optional[float]:
        """The accuracy of an attention in a column. None where no run is finished."""
        cell = self.rows[attention][column]
        return None if cell is None else cell.accuracy[self.columns[column].scale]

    def level(self, attention: str, column: int) -> Optional[float]:
        """The accuracy on a scale from 0, a guess, to 1. None where no run is finished."""
        accuracy = self.accuracy(attention, column)
        return None if accuracy is None else self.columns[column].level(accuracy)

    def seeds_disagree(self, attention: str, column: int) -> bool:
        """Whether seeds of a cell differ by more than half of what there is."""
        cell = self.rows[attention][column]
        if cell is None:
            return False
        least, most = cell.ends[self.columns[column].scale]
        return most - least > DISAGREE

    def solved_by_all(self, attention: str, column: int, level: float) -> bool:
        """Whether each seed reaches a level."""
        cell = self.rows[attention][column]
        if cell is None:
            return False
        least, _ = cell.ends[self.columns[column].scale]
        return self.columns[column].level(least) >= level

    def mean(self, attention: str) -> float:
        """Mean level of an attention in the columns that it has."""
        levels = [self.level(attention, n) for n in range(len(self.columns))]
        known = [level for level in levels if level is not None]
        return sum(known) / len(known) if known else 0.0

    def place(self, attention: str) -> Tuple[int, float]:
        """The place in the order of rows: those with all columns first, then the best."""
        return sum(cell is None for cell in self.rows[attention]), -self.mean(attention)


def columns_of(study: Study) -> List[Column]:
    """The columns of a study: each probe on each scale of its test maps."""
    several = len({probe['type'] for probe in study.probes}) < len(study.probes)
    columns = []
    for probe in study.probes:
        task = build_probe(probe)
        for scale in task.scales:
            title = label(probe) if several else probe['type'].replace('_', ' ')
            if scale > 1:
                title += f', {scale}x map'
            columns.append(Column(title, probe, str(scale), task.chance))
    return columns


def table_of(results: List[dict], study: Study, ordered: bool = True) -> Table:
    """The table of a study. Attentions without a finished run are left out.

    Args:
        results: The results.
        study: The study.
        ordered: Whether the best attention comes first. Default: True.
    """
    columns = columns_of(study)
    results_by_key = by_key(results)
    rows = {}
    for name in study.attentions:
        row = [cell(results_by_key, study, name, column.probe) for column in columns]
        if any(row):
            rows[name] = row
    table = Table(study, columns, rows)
    if not ordered:
        return table
    names = sorted(table.rows, key=table.place)
    return table._replace(rows={name: table.rows[name] for name in names})


def text_of(table: Table) -> str:
    """The table in Markdown, with the steps until a probe was solved."""
    rows = []
    for name in table.rows:
        accuracies = [table.accuracy(name, n) for n in range(len(table.columns))]
        rows.append([name, *texts_of(accuracies, '{:.3f}'.format)])
    return markdown(['attention', *(column.title for column in table.columns)], rows)


def read_costs(path: Path) -> Dict[str, Dict[str, float]]:
    """Costs of attentions in the host LaplacianFormer, of a results.json of ``compare trainings``.

    They are ms of a forward pass by the side of the image, and MB of training at the largest.
    """
    costs: Dict[str, Dict[str, float]] = {}
    for made in json.loads(path.read_bytes())['costs']:
        if made['settings']['host'] != 'laplacianformer':
            continue
        name = made['settings']['attention'].replace('Attention', '')
        costs[name] = {}
        forward = {row['side']: row for row in made['cost']['forward']['rows']}
        for side in SIDES:
            if side in forward:
                costs[name][f'ms {side}²'] = forward[side]['seconds'] * 1e3
        training = {row['side']: row for row in made['cost']['forward and backward']['rows']}
        if SIDES[-1] in training:
            costs[name][f'MB {SIDES[-1]}²'] = training[SIDES[-1]]['MB']
    return costs


def largest(table: Table, name: str) -> Dict[str, Optional[int]]:
    """The largest setting of a probe that each attention solves with an accuracy of 0.9.

    An attention is left out while its next larger setting has not been run.

    Args:
        table: The table of a study that has the probe with several options, the easiest first.
        name: The probe.

    Returns:
        The value of the option that makes the probe harder. None if none has 0.9.
    """
    columns = [n for n, column in enumerate(table.columns) if column.probe['type'] == name]
    knob = build_probe(table.columns[columns[0]].probe).knob
    largest_solved: Dict[str, Optional[int]] = {}
    for attention in table.rows:
        tried = {table.columns[n].probe[knob]: table.accuracy(attention, n) for n in columns}
        known = {value: accuracy for value, accuracy in tried.items() if accuracy is not None}
        reached = [value for value, accuracy in known.items() if accuracy >= REACHED]
        ended = len(known) == len(tried) or len(reached) < len(known)  # or one was too hard
        if ended and next(iter(tried)) in known:
            largest_solved[attention] = max(reached, default=None)
    return largest_solved


class Panel(NamedTuple):
    """A part of a heat map, with a row for each attention.

    Attributes:
        title: What its figures are.
        columns: Titles of its columns.
        levels: Levels from 0 to 1, which give the colors.
        texts: The texts of the cells.
        colors: Name of the colors.
        ends: The levels at the ends of the colors.
    """

    title: str
    columns: List[str]
    levels: Sequence[Sequence[Optional[float]]]
    texts: List[List[str]]
    colors: str
    ends: Tuple[float, float]


def draw(
    table: Table,
    path: Path,
    images: Optional[Dict[str, TrainedHere]] = None,
    costs: Optional[Dict[str, Dict[str, float]]] = None,
    facts: Optional[Dict[str, Dict[str, float]]] = None,
    title: str = 'small tasks, accuracy (%)',
) -> None:
    """Draw the heat map of a table, with what is given beside it.

    Args:
        table: The table.
        path: The picture.
        images: Accuracies by data set. The less an attention differs from the best, by the
            points from which seeds differ, the darker it is. Default: None.
        costs: Costs by attention, as :func:`read_costs` gives them. Default: None.
        facts: By attention, the degree from 0 to 1 to which it has each ability. Default: None.
        title: Title of the accuracies. Default: ``'small tasks, accuracy (%)'``.
    """
    names = list(table.rows)
    panels = [accuracy_panel(table, title)]
    if images:
        panels.append(image_panel(names, images))
    if costs:
        panels.append(cost_panel(names, costs))
    if facts:
        panels.append(ability_panel(names, facts))
    widths = [len(panel.columns) for panel in panels]
    titles = [folded(title) for panel in panels for title in panel.columns]
    lines = 1 + max(title.count('\n') for title in titles)
    size = max(4.0, 1.3 + 0.57 * sum(widths)), 0.5 + 0.14 * lines + 0.215 * len(names)
    figure, axes = new_figure(1, len(panels), size, sharey=True, squeeze=False, width_ratios=widths)
    axes[0, 0].set_yticks(range(len(names)), names, fontsize=8)
    for axis, panel in zip(axes[0], panels):
        paint(axis, panel)
    save(figure, path, dpi=160)


def accuracy_panel(table: Table, title: str) -> Panel:
    """The accuracies of a table, with a star where seeds disagree."""
    numbers = range(len(table.columns))
    levels, texts = [], []
    for name in table.rows:
        levels.append([table.level(name, n) for n in numbers])
        row = texts_of([table.accuracy(name, n) for n in numbers], in_percent)
        for n in numbers:
            if table.seeds_disagree(name, n):
                row[n] += STAR
        texts.append(row)
    columns = [column.title for column in table.columns]
    return Panel(title, columns, levels, texts, 'RdYlBu', (-0.1, 1.1))


def in_percent(share: float) -> str:
    return f'{100 * share:.0f}'


def image_panel(names: List[str], images: Dict[str, TrainedHere]) -> Panel:
    """Accuracies by data set."""
    levels, texts = [], []
    for name in names:
        levels.append([behind_the_best(trained, name) for trained in images.values()])
        top1 = [trained.top1.get(name) for trained in images.values()]
        texts.append(texts_of(top1, '{:.1f}'.format))
    return Panel('images, top-1 (%)', list(images), levels, texts, 'Purples_r', (-2.5, 3.2))


def cost_panel(names: List[str], costs: Dict[str, Dict[str, float]]) -> Panel:
    """Costs, in the colors of their ranks in a column."""
    keys = [f'ms {side}²' for side in SIDES] + [f'MB {SIDES[-1]}²']
    keys = [key for key in keys if any(key in cost for cost in costs.values())]
    ranks = [ranks_of([costs.get(name, {}).get(key) for name in names]) for key in keys]
    levels, texts = [], []
    for row, name in enumerate(names):
        levels.append([of_column[row] for of_column in ranks])
        values = [costs.get(name, {}).get(key) for key in keys]
        texts.append(texts_of(values, '{:.0f}'.format))
    return Panel('cost', keys, levels, texts, 'Greys', (0.0, 2.5))


def ability_panel(names: List[str], facts: Dict[str, Dict[str, float]]) -> Panel:
    """The degrees to which attentions have abilities."""
    abilities = list(next(iter(facts.values())))
    degrees = [[facts.get(name, {}).get(key) for key in abilities] for name in names]
    texts = [texts_of(row, MARKS.__getitem__) for row in degrees]
    return Panel('ability', abilities, degrees, texts, 'Greens', (-0.1, 2.5))


def behind_the_best(made: TrainedHere, name: str) -> Optional[float]:
    """How far top-1 is below the best, in points from which seeds differ. None without a run."""
    if name not in made.top1:
        return None
    return (max(made.top1.values()) - made.top1[name]) / made.seeds_differ


def texts_of(values: List[Any], text_of_one: Callable[[Any], str]) -> List[str]:
    """The texts of values. None is missing."""
    return [MISSING if value is None else text_of_one(value) for value in values]


def folded(title: str) -> str:
    """A title in lines that fit above a cell: of six letters, or of one word."""
    return '\n'.join(fill(part, 6, break_long_words=False) for part in title.split(', '))


def ranks_of(values: Sequence[Optional[float]]) -> List[Optional[float]]:
    """Ranks from 0, the least, to 1, the most. None stays None."""
    order = sorted(value for value in values if value is not None)
    top = max(len(order) - 1, 1)
    return [None if value is None else order.index(value) / top for value in values]


def paint(axis: 'Axes', panel: Panel) -> None:
    """Paint a panel, with a text in each cell."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    grid = [[float('nan') if v is None else v for v in row] for row in panel.levels]
    cmap = colormaps[panel.colors]  # a copy
    cmap.set_bad('#eeeeee')
    colors = cmap(Normalize(*panel.ends)(np.array(grid)))  # (rows, columns, RGBA)
    axis.imshow(colors, aspect='auto')
    dark = colors[..., :3] @ LUMINANCE < DARK
    for y, row in enumerate(panel.texts):
        for x, text in enumerate(row):
            color = 'white' if dark[y, x] else 'black'
            axis.text(x, y, text, ha='center', va='center', fontsize=7.5, color=color)
    titles = [folded(title) for title in panel.columns]
    axis.set_xticks(range(len(titles)), titles, fontsize=8)
    axis.set_title(panel.title, fontsize=9)
    axis.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axis.set_xticks([x - 0.5 for x in range(1, len(panel.columns))], minor=True)
    axis.set_yticks([y - 0.5 for y in range(1, len(panel.texts))], minor=True)
    axis.grid(which='minor', color='white', linewidth=1.2)
    axis.tick_params(which='minor', length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


def tables(results: List[dict], studies: Dict[str, Study]) -> Dict[str, Table]:
    """The tables of all studies that have results. Studies of chosen rows keep their order."""
    study_tables = {}
    for name, study in studies.items():
        table = table_of(results, study, ordered=name == 'attentions')
        if table.rows:
            study_tables[name] = table
    return study_tables


def behind(table: Table, column: int) -> Tuple[str, str]:
    """Numbers of seeds, and of learning rates of cells that are not solved, as text."""
    seeds, rates = [], []
    for row in table.rows.values():
        cell = row[column]
        if cell is None:
            continue
        seeds.append(cell.seeds)
        if cell.accuracy['1'] < SOLVED:
            rates.append(cell.rates)
    return span(seeds), span(rates)


def span(numbers: List[int]) -> str:
    """The least and the largest number."""
    ends = sorted({min(numbers), max(numbers)}) if numbers else []
    return ' to '.join(map(str, ends)) or MISSING


def write_report(results: List[dict], studies: Dict[str, Study], folder: Path) -> List[Path]:
    """Write probes.md and a heat map for each study into a folder, and return their paths."""
    study_tables = tables(results, studies)
    page = folder / 'probes.md'
    texts = [f'## {table.study.title}\n\n{text_of(table)}' for table in study_tables.values()]
    write_whole(page, '\n\n'.join(texts) + '\n')
    pictures = []
    for name, table in study_tables.items():
        pictures.append(folder / f'probes_{name}.png')
        draw(table, pictures[-1])
    return [page, *pictures]
