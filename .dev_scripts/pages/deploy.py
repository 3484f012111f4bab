"""The table of exported models in docs/deploy.md from the logs of measure_exports.py."""

from typing import List

from measure_exports import ROWS, Row

from mmlaplace.commands.command_line import read_json
from mmlaplace.writing import markdown_table

from .files import ROOT, Files

PAGE = ROOT / 'docs/deploy.md'


def update(files: Files) -> None:
    heads = [
        'model',
        'task',
        'format',
        'sizes',
        'as PyTorch',
        'largest difference',
        'PyTorch, ms',
        'runtime, ms',
        'ratio',
    ]
    table = markdown_table(heads, map(cells, ROWS))
    files.tables(PAGE, 'table', lambda name: table)


def cells(row: Row) -> List[str]:
    """What the table says of a row."""
    task = row.config.split('/')[0]
    kind = f'{row.format}, our operators' if row.native else row.format
    if not row.log.is_file():
        return [row.name, task, kind, 'not run', '', '', '', '', '']
    report = read_json(row.log)
    if 'refused' in report:
        return [row.name, task, kind, 'no', report['refused'], '', '', '', '']
    rows = report['differences']
    sizes = ', '.join('×'.join(map(str, one['size'])) for one in rows)
    numbers = {
        name: max(one[name] for one in rows if name in one)
        for name in ('scores', 'logits', 'boxes', 'labels', 'masks', 'missing')
        if any(name in one for one in rows)
    }
    checked = 'no' if any(one['beyond_tolerance'] for one in rows) else 'yes'
    if 'expected' in rows[0]:
        checked += f', {sum(one["expected"] for one in rows)} boxes'
    shown = ', '.join(f'{name} {value:.1g}' for name, value in numbers.items())
    times = report['milliseconds'][0]
    return [
        row.name,
        task,
        kind,
        sizes,
        checked,
        shown,
        f'{times["pytorch"]:.1f}',
        f'{times["runtime"]:.1f}',
        f'{times["ratio"]:.2f}',
    ]
