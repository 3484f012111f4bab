"""The table of docs/developers/forwards.md from the log of count_forwards.py."""

from mmlaplace.commands.command_line import read_json
from mmlaplace.writing import markdown_table

from .files import ROOT, Files

PAGE, LOG = ROOT / 'docs/developers/forwards.md', ROOT / 'docs/logs/forwards.json'
COUNTS = ('operators', 'training_operators', 'calls', 'files')


def update(files: Files) -> None:
    files.tables(PAGE, 'forwards', table)


def table(kind: str) -> str:
    """The table in Markdown."""
    header = ['backbone', 'operators', 'in training', 'calls', 'files']
    header += [f"timm's {title}" for title in header[1:]]
    lines = []
    for name, found in read_json(LOG)['rows'].items():
        beside = found.get('timm', {})
        lines.append(
            [name, *(str(found[count]) for count in COUNTS)]
            + [str(beside.get(count, '–')) for count in COUNTS]
        )
    return markdown_table(header, lines)
