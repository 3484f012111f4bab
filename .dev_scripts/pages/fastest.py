"""The tables of docs/fastest.md from the log of tools/benchmarks/benchmark_runtimes.py."""

import sys
from typing import List

from mmlaplace.commands.command_line import read_json
from mmlaplace.writing import markdown_table

from .files import ROOT, Files

sys.path.insert(0, str(ROOT / 'tools/benchmarks'))
from benchmark_runtimes import LEAST_COSINE, WAYS, cell

PAGE = ROOT / 'docs/fastest.md'
LOG = ROOT / 'docs/logs/fastest_cpu.json'


def update(files: Files) -> None:
    files.tables(PAGE, 'fastest', table)


def table(kind: str) -> str:
    """The rows of backbones, or of whole models, and the machine; or that none was measured."""
    log = read_json(LOG) if LOG.is_file() else dict(rows={})
    rows = [row for row in log['rows'].values() if ('/' in row['model']) == (kind == 'whole')]
    if not rows:
        return 'Not run yet.'
    lines = [
        [
            f'`{row["model"]}`',
            '×'.join(map(str, row['size'])),
            *(cell(row, way) for way in WAYS),
            fastest(row),
        ]
        for row in rows
    ]
    machine = log['machine']
    ways = [way for row in rows for way in row['ways'].values()]
    bases = [way['base_ms'] for way in ways if 'base_ms' in way]
    beside = f', between {min(bases):.0f} and {max(bases):.0f} ms' if bases else ''
    return (
        f'{machine["CPU"]}, {machine["threads"]} threads, torch {machine["torch"]}, ONNX Runtime '
        f'{machine["onnxruntime"]}, OpenVINO {machine["openvino"]} '
        f'([log](logs/{LOG.name})). Beside each row, `{log["base"]}` was timed at 224×224 in '
        f'eager mode{beside}.\n\n'
        + markdown_table(['model', 'size', *WAYS, 'fastest'], lines)
        + '\n\n<!-- searchable -->'
    )


def fastest(row: dict) -> str:
    """The way with the shortest time, of those that compute what eager PyTorch does."""
    right: List[tuple] = [
        (found['ms'], way)
        for way, found in row['ways'].items()
        if 'ms' in found and found['cosine'] >= LEAST_COSINE
    ]
    return min(right)[1] if right else '–'
