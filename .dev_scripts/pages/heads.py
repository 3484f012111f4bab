"""The tables of docs/heads.md and docs/plain_vits.md from the logs of measure_heads.py."""

from measure_heads import (
    BACKBONES,
    DEPLOYED,
    HEADS,
    LOG,
    PLAIN_HEADS,
    PLAIN_LOG,
    PLAIN_SIDES,
    TIMES,
)

from mmlaplace.commands.command_line import read_json
from mmlaplace.writing import markdown_table

from .files import ROOT, Files

PAGE, PLAIN_PAGE = ROOT / 'docs/heads.md', ROOT / 'docs/plain_vits.md'


def update(files: Files) -> None:
    files.tables(PAGE, 'heads', table)
    files.tables(PLAIN_PAGE, 'heads', plain_table)


def amount(found: dict, name: str, unit: float) -> str:
    """A figure of the log, – where it was not measured."""
    return f'{found[name] / unit:.1f}' if name in found else '–'


def plain_table(kind: str) -> str:
    """The table of heads on a plain ViT."""
    rows = read_json(PLAIN_LOG)['rows'] if PLAIN_LOG.is_file() else {}
    header = ['head', 'M', 'GiB', *(f's, {side}²' for side in PLAIN_SIDES)]
    lines = []
    for title, (name, _) in PLAIN_HEADS.items():
        found = rows.get(title, {})
        seconds = found.get('seconds', {})
        lines.append(
            [
                f'[{title}](../configs/heads/{name}.py)',
                amount(found, 'parameters', 1e6),
                amount(found, 'training_bytes', 2**30),
                *(f'{seconds[str(s)]:.1f}' if str(s) in seconds else '–' for s in PLAIN_SIDES),
            ]
        )
    return markdown_table(header, lines)


def table(kind: str) -> str:
    """The table in Markdown."""
    rows, times = (read_json(path)['rows'] for path in (LOG, TIMES))
    header = ['head', *(f'M, {name}' for name in BACKBONES), 'images', f'GiB, {BACKBONES[0]}']
    timed = [name for name in BACKBONES if any(key.endswith(f' {name}') for key in times)]
    header += [*(f's, {name}' for name in timed), 'ONNX', 'OpenVINO']
    lines = []
    for title, (name, (height, width)) in HEADS.items():
        keys = [f'{name} {backbone}' for backbone in BACKBONES]
        counted = [rows.get(key, {}) for key in keys]
        parameters = [amount(found, 'parameters', 1e6) for found in counted]
        memory = amount(counted[0], 'training_bytes', 2**30)
        seconds = [
            f'{times[key]["seconds"]:.2f}' if key in times else '–'
            for key, backbone in zip(keys, BACKBONES)
            if backbone in timed
        ]
        link = f'[{title}](../configs/heads/{name}.py)'
        lines.append([link, *parameters, f'{height} × {width}', memory, *seconds])
        # OpenVINO reads the files of ONNX.
        lines[-1] += ['yes', 'not run'] if title in DEPLOYED else ['no', 'no']
    return markdown_table(header, lines)
