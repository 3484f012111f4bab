"""Times and memory in the tables of README.md and of the pages that help to choose a model.

They are those of a log of tools/benchmarks/benchmark_backbone.py. Words around the tables, such as
ratios, are written by a person.
"""

import re
from typing import Dict, List

from mmlaplace.commands.command_line import read_json

from .files import ROOT, Files

LOG = ROOT / 'docs/logs/benchmark_choose_cpu.json'
PAGES = [ROOT / name for name in ('README.md', 'docs/choose.md', 'docs/large_images.md')]
# Rows of other projects, by the name in the tables. Ours have their own names, in code.
OTHERS = {
    'PVT-Tiny of mmdet': 'mmdet:PyramidVisionTransformer-tiny',
    'PVTv2-B2 of mmdet': 'mmdet:PyramidVisionTransformerV2-b2',
    'Swin-T of mmpretrain': 'mmpretrain:SwinTransformer-tiny',
    'ConvNeXt-T of timm': 'timm:convnext_tiny',
    'ResNet-50 of mmpretrain': 'mmpretrain:ResNet-50',
}
SIDE = re.compile(r'^(\d+)²(?:, ms)?$')
MEGABYTES = re.compile(r'^MB, (\d+)²$')


def update(files: Files) -> None:
    rows = read_json(LOG)['rows']
    milliseconds = {(row['candidate'], row['side']): row['ms per image'] for row in rows}
    megabytes = {(row['candidate'], row['side']): row['MB'] for row in rows}
    for page in PAGES:
        text = files.read(page)
        for table in re.findall(r'(?:^\|.*\n)+', text, flags=re.M):
            text = text.replace(table, filled(table, milliseconds, megabytes))
        files.write(page, text)


def filled(table: str, milliseconds: Dict[tuple, float], megabytes: Dict[tuple, float]) -> str:
    """A table of Markdown, with the figures of the log in the cells that have some."""
    header, *lines = table.splitlines()
    columns = []
    for place, title in enumerate(cells_of(header)):
        for pattern, figures in ((SIDE, milliseconds), (MEGABYTES, megabytes)):
            if found := pattern.match(title):
                columns.append((place, int(found[1]), figures))
    made = [header]
    for line in lines:
        cells = cells_of(line)
        name = cells[0].strip('*`').partition('`')[0]
        candidate = OTHERS.get(name, name)
        measured = [one for one in columns if (candidate, one[1]) in one[2]]
        for place, side, figures in measured:
            cells[place] = f'{figures[candidate, side]:,.0f}'
        made.append(f'| {" | ".join(cells)} |' if measured else line)
    return '\n'.join(made) + '\n'


def cells_of(line: str) -> List[str]:
    return [cell.strip() for cell in line.strip().strip('|').split('|')]
