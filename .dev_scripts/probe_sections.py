"""The sections of docs/probes.md on the probes, and on harder and larger ones."""

import textwrap
from typing import Dict, List, Optional, Tuple

import numpy as np

from mmlaplace.lab.comparison.attention_report import markdown
from mmlaplace.lab.probes.prediction import spearman
from mmlaplace.lab.probes.report import MISSING, NAMES, STAR, Table, behind, largest
from mmlaplace.lab.probes.results import by_key, key_of
from mmlaplace.lab.probes.study import REACHED, SOLVED, settings_of
from mmlaplace.lab.probes.tasks import PROBES, build_probe


def filled(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def percent(value: Optional[float]) -> str:
    return MISSING if value is None else f'{100 * value:.0f}'


def plain(header: List[str], rows: List[List[str]]) -> str:
    return markdown(header, rows).replace('---:', '---')


def titles_of(table: Table) -> List[str]:
    return [column.title for column in table.columns]


def accuracy(table: Table, name: str, column: int) -> str:
    """An accuracy in %, with a star if the time of the run was up."""
    if name not in table.rows:
        return MISSING
    found = table.rows[name][column]
    cut = found is not None and found.seconds >= table.study.schedule['seconds']
    return percent(table.accuracy(name, column)) + STAR * cut


def probes_section(table: Table) -> str:
    """A row for each probe, with its task, chance and paper."""
    rows = []
    first = {column.probe['type']: n for n, column in reversed(list(enumerate(table.columns)))}
    for number in sorted(first.values()):
        seen = table.columns[number].probe
        task = ' '.join((PROBES.get(seen['type']).__doc__ or '').split('\n\n')[0].split())
        size = ', '.join(f'{name} {value}' for name, value in seen.items() if name != 'type')
        probe, (seeds, rates) = build_probe(seen), behind(table, number)
        levels = f'{100 * probe.chance:.0f}, {100 * probe.perfect:.0f}'
        name = table.columns[number].title
        rows.append([name, task, size, levels, f'`{probe.knob}`', probe.paper, seeds, rates])
    header = ['probe', 'task', 'here', 'chance, perfect, %', 'option', 'paper', 'seeds',
              'rates']  # fmt: skip
    return plain(header, rows)


def rates_text(results: List[dict], table: Table) -> str:
    """How many cells with all rates, and not solved, gain by the largest one."""
    study, found = table.study, by_key(results)
    rate, gains, twice = max(study.rates), [], {}
    for probe in study.probes:
        for name in study.attentions:
            keys = {lr: key_of(settings_of(study, name, probe, lr, 0))
                    for lr in (*study.rates, 2 * rate)}  # fmt: skip
            by_rate = {lr: found[key]['accuracy']['1'] for lr, key in keys.items() if key in found}
            known = [by_rate[lr] for lr in study.rates if lr in by_rate]
            if len(known) < len(study.rates) or max(known) >= SOLVED:
                continue
            gains.append(by_rate[rate] - max(by_rate[lr] for lr in study.rates if lr != rate))
            if gains[-1] > CLEAR and 2 * rate in by_rate:
                twice[f'{name} in *{NAMES[probe["type"]]}*'] = by_rate[2 * rate] - by_rate[rate]
    clear = sum(gain > CLEAR for gain in gains)
    text = RATES.format(best=sum(gain > 0 for gain in gains), cells=len(gains), rate=rate,
                        clear=clear, points=100 * CLEAR)  # fmt: skip
    better = [where for where, gain in twice.items() if gain > CLEAR]
    if not twice:
        return text
    gain = f'only with {"; ".join(better)}' if better else 'nowhere'
    return f'{text} {TWICE.format(tried=len(twice), gain=gain)}'


CLEAR = 0.1  # gain of an accuracy
RATES = """\
In {best} of {cells} cells with all rates, the largest one, {rate}, is the best, and in {clear} by
more than {points:.0f} points."""
TWICE = """\
Twice that rate was tried in {tried} of these. It gains as much again {gain}."""
TRAINING = """\
A model has {depth} blocks with {embed_dims} channels and {num_heads} heads, and learns for at most
{steps} steps of {batch_size} maps of 8 x 16 tokens. So a low accuracy can also mean that an
attention learns slowly. Attentions have their default options, such as 49 landmarks. In *offset*
they get rotary positions and a 3 x 3 convolution too, if they have these options. A test has 256
maps. At four times the tokens some runs had 64, of *count* those that answer 98 % or more."""
SURE = """\
**How sure.** *Seeds* counts the seeds, and *rates* the learning rates of the cells that are not
solved. The plan is 3 seeds and 4 rates. A run learns a task or does not, so a cell is the median of
its seeds. The best rate of the first seed gets the other seeds. Where its seeds differ by more than
50 points, the other rates get them too, and the best median counts. {rates} A star marks cells
whose seeds differ by more than 50 points. Trust a difference between blue and red without a star,
and none between two similar colours. *Magnitude* asks an attention to recall first: over
attentions, its rank correlation with *recall* is {with_recall:.2f}. So a low accuracy in both says
nothing about injectivity."""


def training_section(results: List[dict], table: Table) -> str:
    """How the models were trained, and how sure the figures are."""
    titles = titles_of(table)
    recall, magnitude = titles.index('recall'), titles.index('magnitude')
    both = [
        (table.level(name, recall), table.level(name, magnitude))
        for name, row in table.rows.items()
        if row[recall] and row[magnitude]
    ]
    sure = SURE.format(
        rates=rates_text(results, table),
        with_recall=float(spearman(*map(np.array, zip(*both)))),
    )
    training = TRAINING.format(**table.study.model, **table.study.schedule)
    return f'{filled(training)}\n\n{filled(sure)}'


def largest_section(table: Table) -> str:
    """The attentions by the largest task of a type that they reach."""
    rows, missing = [], ''
    for kind, unit in (('recall', 'pairs'), ('one_of_many', 'candidates')):
        reached = largest(table, kind)
        if len(reached) < len(table.rows):
            missing = 'Missing attentions were not run to their end. '
        least, *_ = (column.probe[unit] for column in table.columns if column.probe['type'] == kind)
        for value in sorted({value or 0 for value in reached.values()}, reverse=True):
            names = [name for name in reached if (reached[name] or 0) == value]
            size = f'{value} {unit}' if value else f'fewer than {least} {unit}'
            rows.append([f'{NAMES[kind]}, {size}', '; '.join(names)])
    intro = (
        'The most pairs, or candidates, of which an attention answers 0.9 right. A larger task was '
        'tried after all smaller ones. All have seed 0. Tasks of the picture have the best of its '
        'rates, and the others one to three. '
        f'{missing}A task with fewer pairs teaches fewer answers a step.'
    )
    return f'{filled(intro)}\n\n{plain(["largest task", "attentions"], rows)}'


TOKENS = {
    '128 tokens, 16 pairs': 'attentions',
    '512 tokens, 16 pairs': 'tokens_512',
    '512 tokens, 64 pairs': 'large',
    '2,048 tokens, 64 pairs': 'larger',
}
LARGER = """\
Recall, in %. The first column is that of the picture. The others have seed 0 and one or two
learning rates, of which the better counts. Maps with 64 pairs are learnt in 800 steps of 8."""
OFFSET = """\
Offset to the next token and far away, with what a host gives and without: rotary positions, and a
3 x 3 convolution of the values. It has the better of two rates, and seed 0. Far away, with what a
host gives, it has the seeds of the picture."""
COUNT = 'Count on test maps of more tokens than those of training:'


def larger_section(found: Dict[str, Table]) -> str:
    """Recall on larger maps, offset with and without positions, and count on more tokens."""
    rows = []
    for name in found['large'].study.attentions:
        cells = [accuracy(found[study], name, 0) if study in found else MISSING
                 for study in TOKENS.values()]  # fmt: skip
        rows.append([name, *cells])
    parts = [filled(LARGER), markdown(['recall, %', *TOKENS], rows)]
    if any(cell.endswith(STAR) for row in rows for cell in row[1:]):
        parts.append('\\* The run ended at two minutes of the processor.')
    offsets = ['next', 'next, without', '3 down, 4 right', '3 down, 4 right, without']
    for study, text, titles, chosen in (
        ('offset', OFFSET, offsets, '1'),
        ('count', COUNT, ['as in training', '2x', '4x', '16x'], ''),
    ):
        table = found.get(study)
        if table is None:
            continue
        numbers = [n for n, c in enumerate(table.columns) if c.scale == (chosen or c.scale)]
        rows = [[name, *(accuracy(table, name, n) for n in numbers)] for name in table.rows]
        parts += [filled(text), markdown([f'{study}, %', *titles], rows)]
    if 'noise' in found:
        table = found['noise']
        answers = {name: table.accuracy(name, 0) or 0.0 for name in table.rows}
        able = [name for name in answers if answers[name] >= REACHED]
        others = max(answer for answer in answers.values() if answer < REACHED)
        parts.append(filled(
            f'*Noise* with 8 pairs among 96 others is solved by {"; ".join(able) or "none"}, of '
            f'{len(answers)} attentions that were run, most with one rate. The best of the others '
            f'answers {percent(others)} %.'
        ))  # fmt: skip
    return '\n\n'.join(parts)


def missing_section(found: Dict[str, Table]) -> str:
    """The attentions and probes without results."""
    table, parts = found['attentions'], []
    for number, column in enumerate(table.columns):
        names = [name for name, row in table.rows.items() if row[number] is None]
        if names and column.scale == '1':
            which = ', '.join(names) if len(names) <= 3 else f'{len(names)} attentions'
            parts.append(f'{column.title}: {which}')
    lines = ['An attention without any run is not in the picture.']
    if parts:
        lines.append(f'Cells without a run: {"; ".join(parts)}.')
    slow = found['landmarks'].rows.get('Skyformer, 49 pooled', [None])[0]
    if slow is not None and slow.steps < table.study.schedule['steps']:
        lines.append(
            f'A run of Skyformer takes more than two minutes: its recall is of step '
            f'{slow.steps:.0f}.'
        )
    return filled(' '.join(lines))


# A script of before the tool: recall of 16 and 56 pairs, with 64 channels, two heads, 1,500 steps.
PILOT = {
    'Softmax': (1.000, 1.000), 'Pola': (1.000, 1.000), 'Linear': (1.000, 0.997),
    'LiteMLA': (None, 0.966), 'Laplacian': (0.544, 0.685), 'Laplacian, 16 landmarks': (None, 0.456),
    'Laplacian, 80 landmarks': (None, 0.879), 'RALA': (None, 0.559), 'Hydra': (None, 0.059),
    'SOFT': (0.027, None),
}  # fmt: skip
CLOSE = 0.05


# 200 pairs on 512 tokens, with 1,200 steps.
PILOT_512 = {'Softmax': (1.000,), 'Linear': (0.207,), 'Pola': (0.088,), 'MLLA': (0.017,)}
PILOT_TEXT = """\
A script of before the tool had the accuracies of *pilot*, in %: 64 channels, two heads, 1,500
steps, one seed. The tool draws other weights and maps. It has the same within {points:.0f} points
{but}. Where several seeds were run, the tool's figure is their median, with the least and the
largest in brackets."""
PILOT_LARGER = 'With 200 pairs on 512 tokens and 1,200 steps:'


def with_ends(table: Table, name: str, column: int) -> str:
    """An accuracy in %, with those of the worst and the best seed if there are several."""
    text = accuracy(table, name, column)
    if text == MISSING or table.rows[name][column].seeds == 1:
        return text
    ends = table.rows[name][column].ends[table.columns[column].scale]
    return f'{text} ({" to ".join(map(percent, ends))})'


def repeated(pilot: Dict[str, tuple], table: Table) -> Tuple[List[List[str]], List[str]]:
    """Rows of a table of the pilot beside the tool, and the names whose accuracies differ."""
    rows, apart = [], []
    for name, before in pilot.items():
        now = [table.accuracy(name, column) for column in range(len(before))]
        texts = [with_ends(table, name, column) for column in range(len(before))]
        rows.append([name, *(text for a, b in zip(before, texts) for text in (percent(a), b))])
        if any(a is not None and b is not None and abs(a - b) > CLOSE for a, b in zip(before, now)):
            apart.append(name)
    return rows, apart


def pilot_section(found: Dict[str, Table]) -> str:
    """The tables of the pilot, repeated by the tool."""
    rows, apart = repeated(PILOT, found['recall'])
    but = f'but for {"; ".join(apart)}' if apart else 'everywhere'
    header = ['recall, %', '16 pairs, pilot', '16 pairs', '56 pairs, pilot', '56 pairs']
    parts = [filled(PILOT_TEXT.format(points=100 * CLOSE, but=but)), markdown(header, rows)]
    if 'pilot_512' in found:
        known = {name: v for name, v in PILOT_512.items() if name in found['pilot_512'].rows}
        rows, _ = repeated(known, found['pilot_512'])
        header = ['recall, %', '200 pairs, pilot', '200 pairs']
        parts += [PILOT_LARGER, markdown(header, rows)]
    return '\n\n'.join(parts)
