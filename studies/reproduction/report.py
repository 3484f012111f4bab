"""Reports of published and reproduced values: as JSON, as Markdown and as a plot."""

import math
import os
import statistics
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mmlaplace.lab.figures import new_figure, save
from mmlaplace.lab.runner import Outcome
from mmlaplace.writing import markdown_table

from .paper_tables import METRICS, Row, Run, Table


def run_report(
    run: Run, scale: str, trained: Mapping[int, Outcome], measured: Sequence[Outcome]
) -> Dict[str, Any]:
    """The report of a run of a row.

    Args:
        run: The run.
        scale: ``'full'`` or ``'mini'``.
        trained: Outcomes of its trainings or drawings, by seed.
        measured: Outcomes of its measurements, first that of the full-size model.
    """
    done = {seed: found for seed, found in trained.items() if isinstance(found, dict)}
    outcomes = {f'seed {seed}': found for seed, found in trained.items()}
    outcomes.update((f'measurement {i}', found) for i, found in enumerate(measured, 1))
    failures = {part: text for part, text in outcomes.items() if isinstance(text, str)}
    spec = run.spec(scale)

    def by_seed(name: str) -> Dict[str, Any]:
        return {str(seed): found[name] for seed, found in done.items() if name in found}

    entry: Dict[str, Any] = dict(
        name=run.name,
        config=spec.config if spec else None,
        options=dict(spec.options) if spec else {},
        config_hashes=by_seed('config_hash'),
        checkpoints=by_seed('checkpoint'),
        logs=by_seed('log'),
        files=[file for found in done.values() for file in found.get('files', ())],
        seconds=sum(found['seconds'] for found in done.values()),
        attention_terms=by_seed('attention_terms'),
    )
    entry['made_on'] = {
        part: dict(machine=found['machine'], versions=found['versions'])
        for part, found in outcomes.items()
        if isinstance(found, dict) and {'machine', 'versions'} <= set(found)
    }
    figures: Dict[str, Any] = {}
    for found in reversed(measured):  # values of the full-size model, the first, replace others
        figures.update(found if isinstance(found, dict) else {})
    entry['metrics'] = {}
    for name, published in run.published.items():
        metric = METRICS[name]
        if metric.measured:
            value = figures.get(metric.measured)
            values = [] if value is None else [value]
        else:
            values = [found['scores'].get(metric.log) for found in done.values()]
            if None in values:
                failures[name] = f'the log has no {metric.log!r}'
                values = []
        at = 'full' if metric.on_full else scale
        shown = compared(published, values, metric.factor, at, bool(metric.measured))
        entry['metrics'][name] = dict(shown, unit=metric.unit)
    entry['failures'] = failures
    return entry


def compared(
    published: Union[float, str, None], values: Sequence, factor: float, at: str, measured: bool
) -> Dict[str, Any]:
    """Compare a published value with the reproduced ones.

    A difference is only computed at full scale.

    Args:
        published: The published value, None if there is none. Text must be equal.
        values: The reproduced values, one for each seed.
        factor: Factor from these values to the unit of the published one.
        at: The scale of these values, ``'full'`` or ``'mini'``.
        measured: Whether the values are measurements, and not scores.
    """
    if isinstance(published, str):
        texts = [', '.join(map(str, value)) for value in values]
        same = None if not texts else 'same' if set(texts) == {published} else 'other'
        return dict(published=published, values=texts, difference=same, at=at, measured=measured)
    found = [value * factor for value in values]
    entry: Dict[str, Any] = dict(published=published, values=found, at=at, measured=measured)
    if found:
        entry['mean'] = statistics.mean(found)
        entry['s'] = statistics.stdev(found) if len(found) > 1 else None
    full = found and at == 'full' and published is not None
    entry['difference'] = entry['mean'] - published if full else None
    return entry


def row_report(row: Row, runs: List[dict]) -> Dict[str, Any]:
    """The report of a row, with those of its runs."""
    entry: Dict[str, Any] = dict(
        name=row.name,
        label=row.label,
        kind=row.kind,
        line=row.line,
        note=row.note,
        waits_for=row.waits_for,
        why_not=row.why_not,
        runs=runs,
        averages={},
    )
    for name, published in row.averages.items():
        means = [run['metrics'].get(name, {}).get('mean') for run in runs]
        at = runs[0]['metrics'][name]['at'] if runs else 'full'
        values = [statistics.mean(means)] if means and None not in means else []
        entry['averages'][name] = compared(published, values, 1.0, at, False)
        entry['averages'][name]['unit'] = METRICS[name].unit
    return entry


def number(value: Optional[Union[float, str]]) -> str:
    """Format a value with at most two decimals, from 1000 on with none. None is ``'–'``."""
    if value is None:
        return '–'
    if isinstance(value, str):
        return value
    return f'{value:.2f}'.rstrip('0').rstrip('.') if abs(value) < 1000 else f'{value:.0f}'


def reproduced(entry: dict) -> str:
    """Format the mean of reproduced values and their standard deviation over seeds."""
    if 'mean' not in entry:
        return '; '.join(map(number, entry['values'])) or '–'
    spread = '' if entry['s'] is None else f' ± {number(entry["s"])}'
    small = ', of the small copy' if entry['at'] == 'mini' else ''
    return f'{number(entry["mean"])}{spread}{small}'


def signed(value: Optional[Union[float, str]]) -> str:
    """Format a difference with its sign."""
    return number(value) if value is None or isinstance(value, str) else f'{value:+.2f}'


def markdown(report: dict, folder: Path) -> str:
    """The report as Markdown. Its links are relative to ``folder``."""
    lines = [
        f'# {report["title"]}',
        '',
        f'{report["paper"]}, {report["place"]}. Scale: {report["scale"]}. '
        f'Seeds: {", ".join(map(str, report["seeds"]))}.',
        '',
    ]
    if report['note']:
        lines += [report['note'], '']
    if report['scale'] == 'mini':
        lines += [
            'Scores, speeds and memory are those of small copies on small data. They say nothing '
            'of the published figures, which are beside them for their order alone. Parameters and '
            'MACs are those of the full-size models.',
            '',
        ]
    header = ('row', 'kind', 'metric', 'published', 'reproduced', 'difference', 'log', 'config')
    rows = [cells for row in report['rows'] for cells in _row_cells(row, folder)]
    lines.append(markdown_table(header, rows))
    notes = [f'- {row["label"]}: {row["note"]}' for row in report['rows'] if row['note']]
    lines += ['', '## Notes', '', *notes] if notes else []
    lines += _term_lines(report)
    failed = [
        (row, run, *item)
        for row in report['rows']
        for run in row['runs']
        for item in run['failures'].items()
    ]
    if failed:
        lines += ['', '## What failed']
    for row, run, where, text in failed:
        lines += ['', f'{row["label"]} {run["name"]}, {where}:', '', '```', text, '```']
    lines += ['', '## Where', '']
    places = _places(report)
    for about, parts in places.items():
        lines += [about if len(places) == 1 else f'{"; ".join(parts)}: {about}', '']
    lines += [f'Call: `{report["call"]}`']
    return '\n'.join(lines) + '\n'


def _places(report: dict) -> Dict[str, List[str]]:
    """Machines with their versions, each with the jobs that ran there."""
    found: Dict[str, List[str]] = {}
    for row in report['rows']:
        for run in row['runs']:
            for part, made in run.get('made_on', {}).items():
                about = {**made['machine'], **made['versions']}
                text = ', '.join(f'{name}: {value}' for name, value in about.items())
                found.setdefault(text, []).append(f'{row["label"]} {run["name"]} ({part})')
    return found


def _term_lines(report: dict) -> List[str]:
    """Sizes of SOFT's attention terms. If they are small, a row does not compare attentions."""
    lines = []
    for row in report['rows']:
        for run in row['runs']:
            for seed, terms in run['attention_terms'].items():
                sizes = [
                    f'{term["mixed"]:.1e} beside {term["local"]:.1e}'
                    if 'local' in term
                    else f'{term["mixed"]:.1e} of V {term["values"]:.1e}'
                    for term in terms
                ]
                label = f'{row["label"]} {run["name"]}'.strip()
                lines.append(f'- {label}, seed {seed}: {"; ".join(sizes)}')
    title = (
        'Root mean squares for photographs, of what the attention mixes beside the convolution of '
        'V, block by block, or beside V itself where there is no convolution. Where the first is '
        'far below the second, the row compares other parts of the model.'
    )
    return ['', '## Size of the attention term', '', title, '', *lines] if lines else []


def _row_cells(row: dict, folder: Path) -> List[List[str]]:
    label = row['label']
    reason = row['why_not'] or (f'waits for {row["waits_for"]}' if row['waits_for'] else '')
    found = []
    for run in row['runs']:
        title = f'{label}, {run["name"]}' if run['name'] else label
        logs = [(seed, os.path.relpath(log, folder)) for seed, log in run['logs'].items()]
        links = [f'[{seed}]({log})' for seed, log in logs]
        links += [f'[{Path(f).name}]({os.path.relpath(f, folder)})' for f in run['files']]
        hashes = ' '.join(run['config_hashes'].values())
        failed = 'failed' if run['failures'] else ''
        for name, entry in run['metrics'].items():
            unit = f'{name}, {entry["unit"]}' if entry['unit'] else name
            value = reproduced(entry) if entry['values'] else reason or failed or 'not run'
            found.append(
                [
                    title,
                    row['kind'],
                    unit,
                    number(entry['published']),
                    value,
                    signed(entry['difference']),
                    ' '.join(links),
                    hashes,
                ]
            )
        if not run['metrics']:
            state = reason or failed or ('done' if run['config_hashes'] else 'not run')
            found.append([title, row['kind'], '–', '–', state, '–', ' '.join(links), hashes])
    for name, entry in row['averages'].items():
        value = reproduced(entry) if entry['values'] else reason or 'not run'
        found.append(
            [
                f'{label}, mean',
                row['kind'],
                name,
                number(entry['published']),
                value,
                signed(entry['difference']),
                '',
                '',
            ]
        )
    return found or [[label, row['kind'], '–', '–', reason or 'not run', '–', '', '']]


def points(report: dict) -> Dict[str, List[Tuple[str, dict]]]:
    """For each reproduced score, the labels of the rows and their comparisons."""
    found: Dict[str, List[Tuple[str, dict]]] = {}
    for row in report['rows']:
        for run in row['runs']:
            for name, entry in run['metrics'].items():
                if not entry['measured'] and entry['values']:
                    title = f'{row["label"]}, {run["name"]}' if run['name'] else row['label']
                    found.setdefault(name, []).append((title, entry))
    return found


def plot(report: dict, path: Path) -> bool:
    """Plot the scores, published on the left and reproduced on the right.

    Returns:
        Whether there are scores. Without scores no file is written.
    """
    scores = points(report)
    if not scores:
        return False
    heights = [1 + 0.3 * len(rows) for rows in scores.values()]
    figure, grid = new_figure(
        len(scores), 2, (10, sum(heights)), squeeze=False, height_ratios=heights
    )
    full = report['scale'] == 'full'
    for (name, rows), (left, right) in zip(scores.items(), grid):
        places = range(len(rows))
        unit = f'{name}, {rows[0][1]["unit"]}'
        published = [math.nan if e['published'] is None else e['published'] for _, e in rows]
        left.plot(published, places, 'o', color='C7')
        means = [entry['mean'] for _, entry in rows]
        spreads = [entry['s'] or 0 for _, entry in rows]
        right.errorbar(means, places, xerr=spreads, fmt='s', color='C0', capsize=3)
        left.set_yticks(places, [label for label, _ in rows])
        right.set_yticks(places, [])
        left.set_xlabel(f'{unit}, published')
        right.set_xlabel(f'{unit}, reproduced' + ('' if full else ' by small copies'))
        for axes in (left, right):
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.grid(alpha=0.3)
        if full:
            right.sharex(left)
    figure.suptitle(f'{report["paper"]}, {report["place"]}: {report["title"]}')
    save(figure, path, dpi=120)
    return True


def new_report(table: Table, **about: Any) -> Dict[str, Any]:
    """A report of a table, without rows."""
    return dict(
        table=table.name,
        title=table.title,
        paper=table.paper,
        place=table.place,
        note=table.note,
        **about,
        rows=[],
    )
