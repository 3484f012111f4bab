"""The table of docs/heads.md from the logs of measure_heads.py."""

from measure_heads import BACKBONES, DEPLOYED, HEADS, LOG, TIMES

from mmlaplace.commands.command_line import read_json
from mmlaplace.writing import markdown_table

from .files import ROOT, Files

PAGE = ROOT / 'docs/heads.md'


def update(files: Files) -> None:
    files.tables(PAGE, 'heads', table)


def table(kind: str) -> str:
    """The table in Markdown."""
    rows, times = (read_json(path)['rows'] for path in (LOG, TIMES))
    header = ['head', *(f'M, {name}' for name in BACKBONES), 'images', f'GiB, {BACKBONES[0]}']
    header += [*(f's, {name}' for name in BACKBONES), 'deploys']
    lines = []
    for title, (name, (height, width)) in HEADS.items():
        keys = [f'{name} {backbone}' for backbone in BACKBONES]
        parameters = [f'{rows[key]["parameters"] / 1e6:.1f}' for key in keys]
        memory = f'{rows[keys[0]]["training_bytes"] / 2**30:.1f}'
        seconds = [f'{times[key]["seconds"]:.2f}' if key in times else '–' for key in keys]
        link = f'[{title}](../configs/heads/{name}.py)'
        lines.append([link, *parameters, f'{height} × {width}', memory, *seconds])
        lines[-1].append('yes' if title in DEPLOYED else 'no')
    return markdown_table(header, lines)
