"""The tables of docs/probes.md, of the results of the probes."""

from typing import Dict, List, Optional

import torch

from mmlaplace.lab.probes.report import MISSING, STAR, Table, behind, largest
from mmlaplace.lab.probes.tasks import PROBES, build_probe
from mmlaplace.lab.side_by_side.attention_report import markdown
from mmlaplace.models.layers import Landmarks
from mmlaplace.models.layers.kernels import KERNELS
from mmlaplace.ops import cholesky_inverse
from mmlaplace.writing import markdown_table

# Studies by the titles of their columns.
TOKENS = {
    '128 tokens, 16 pairs': 'attentions',
    '512 tokens, 16 pairs': 'tokens_512',
    '512 tokens, 64 pairs': 'large',
    '2,048 tokens, 64 pairs': 'larger',
}
HEADS = {
    'picture': 'attentions',
    '1 head': 'heads_1',
    '4 heads': 'heads_4',
    '16 channels': 'channels_16',
    '64 channels': 'channels_64',
    '1 head, 64 channels': 'head_64',
}
OFFSETS = ['next', 'next, without', '3 down, 4 right', '3 down, 4 right, without']


def probe_tables(found: Dict[str, Table]) -> Dict[str, str]:
    """The tables by their names in the page, of the tables of studies by their names."""
    return {
        'probes': probes_table(found['attentions']),
        'largest': largest_table(found['largest']),
        'tokens': studies_table(found, TOKENS, 'large'),
        'offset': columns_table(found['offset'], 'offset, %', OFFSETS, '1'),
        'count': count_table(found['count'], found['attentions']),
        'landmarks': landmarks_table(found),
        'missing': missing_table(),
        'options': options_table(found['options']),
        'heads': studies_table(found, HEADS, 'heads_1'),
    }


def percent(value: Optional[float]) -> str:
    """A share in %."""
    return MISSING if value is None else f'{100 * value:.0f}'


def accuracy(table: Table, name: str, column: int) -> str:
    """An accuracy in %, with a star if the time of the run was up."""
    if name not in table.rows:
        return MISSING
    text = percent(table.accuracy(name, column))
    cell = table.rows[name][column]
    if cell is not None and cell.seconds >= table.study.schedule['seconds']:
        text += STAR
    return text


def with_ends(table: Table, name: str, column: int) -> str:
    """An accuracy in %, with those of the worst and the best seed if there are several."""
    text = accuracy(table, name, column)
    if text == MISSING or table.rows[name][column].seeds == 1:
        return text
    ends = table.rows[name][column].ends[table.columns[column].scale]
    return f'{text} ({" to ".join(map(percent, ends))})'


def probes_table(table: Table) -> str:
    """A row for each probe, with its task, chance and paper."""
    rows = []
    types = set()
    for number, column in enumerate(table.columns):
        seen = column.probe
        if seen['type'] in types:
            continue
        types.add(seen['type'])
        task = ' '.join((PROBES.get(seen['type']).__doc__ or '').split('\n\n')[0].split())
        size = ', '.join(f'{name} {value}' for name, value in seen.items() if name != 'type')
        probe = build_probe(seen)
        seeds, rates = behind(table, number)
        levels = f'{100 * probe.chance:.0f}, {100 * probe.perfect:.0f}'
        rows.append(
            [column.title, task, size, levels, f'`{probe.knob}`', probe.paper, seeds, rates]
        )
    header = ['probe', 'task', 'here', 'chance, perfect, %', 'option', 'paper', 'seeds', 'rates']
    return markdown_table(header, rows)


def largest_table(table: Table) -> str:
    """The attentions by the largest task of a type that they reach."""
    rows = []
    for kind, unit in (('recall', 'pairs'), ('one_of_many', 'candidates')):
        reached = largest(table, kind)
        sizes = [column.probe[unit] for column in table.columns if column.probe['type'] == kind]
        for value in sorted({value or 0 for value in reached.values()}, reverse=True):
            names = [name for name in reached if (reached[name] or 0) == value]
            size = f'{value} {unit}' if value else f'not even {sizes[0]} {unit}'
            rows.append([f'{kind.replace("_", " ")}, {size}', '; '.join(names)])
    return markdown_table(['largest task', 'attentions'], rows)


def studies_table(found: Dict[str, Table], studies: Dict[str, str], rows_of: str) -> str:
    """Recall in the first column of studies, for the attentions of one of them."""
    rows = [
        [name, *(accuracy(found[study], name, 0) for study in studies.values())]
        for name in found[rows_of].study.attentions
    ]
    return markdown(['recall, %', *studies], rows)


def columns_table(table: Table, title: str, columns: List[str], scale: str = '') -> str:
    """The columns of a study with a scale of test maps. Default: all columns."""
    numbers = [n for n, column in enumerate(table.columns) if scale in ('', column.scale)]
    rows = [[name, *(accuracy(table, name, n) for n in numbers)] for name in table.rows]
    return markdown([title, *columns], rows)


def count_table(scales: Table, picture: Table) -> str:
    """Accuracy in count by the scale of the test maps, with the picture's cells where it has some.

    The picture has more seeds than the study of all scales.
    """
    cells = {}
    for table in (scales, picture):
        for number, column in enumerate(table.columns):
            if column.probe['type'] == 'count':
                cells[column.scale] = table, number
    names = {'1': 'as in training', '2': '2x, seed 0', '4': '4x', '16': '16x, seed 0'}
    rows = [
        [name, *(accuracy(cells[scale][0], name, cells[scale][1]) for scale in names)]
        for name in scales.rows
    ]
    return markdown(['count, %', *names.values()], rows)


def landmarks_table(found: Dict[str, Table]) -> str:
    """Recall by the number of landmarks: in the picture's runs, and in two longer schedules."""
    rows = []
    for name, cfg in found['landmarks'].study.attentions.items():
        if name.startswith(('Laplacian, 49, ', 'Skyformer')) or ', all tokens, ' in name:
            continue
        middle = last_recall(found['landmarks_56'], cfg)
        last = last_recall(found['options'], cfg)
        if last == MISSING:
            last = last_recall(found['recall'], cfg)
        rows.append([name, accuracy(found['landmarks'], name, 0), middle, last])
    header = ['LaplacianAttention with', '16 pairs', '56 pairs, 800 steps', '56 pairs, 1,500 steps']
    return markdown(header, rows)


def last_recall(table: Table, attn_cfg: dict) -> str:
    """Recall in % in the last column of a table, by the config of the attention."""
    default = dict(num_landmarks=49)
    for name, cfg in table.study.attentions.items():
        if {**default, **cfg} == {**default, **attn_cfg}:
            return accuracy(table, name, len(table.columns) - 1)
    return MISSING


def options_table(table: Table) -> str:
    """Recall by options of LaplacianAttention."""
    rows = [[name, with_ends(table, name, 0)] for name in table.rows]
    return markdown(['LaplacianAttention with', '56 pairs, 1,500 steps'], rows)


def missing_table() -> str:
    """The variation over queries that each kernel loses by few landmarks and by all tokens."""
    rows = []
    for kernel, symbol, bandwidths in (('laplacian', 'λ', (0.5, 4, 32)), ('gaussian', 'σ', (2, 4))):
        for bandwidth in bandwidths:
            row = [f'{kernel.capitalize()}, {symbol} = {bandwidth:g}']
            for landmarks in (49, 256):
                for deviation in (0.3, 1.0):
                    row.append(percent(missing_share(kernel, bandwidth, landmarks, deviation)))
            rows.append(row)
    header = [
        '% missing',
        '49 means, deviation 0.3',
        '49 means, deviation 1',
        'all tokens, deviation 0.3',
        'all tokens, deviation 1',
    ]
    return markdown(header, rows)


def missing_share(kernel: str, bandwidth: float, landmarks: int, deviation: float) -> float:
    """The share of a kernel's variation over queries that is lost by landmarks of random keys."""
    kernel_fn, _ = KERNELS[kernel]
    draw = torch.Generator().manual_seed(0)
    q, k = deviation * torch.randn(2, 8, 1, 8 * 16, 16, generator=draw)  # (B, heads, N, d) each
    means = Landmarks(landmarks)(k, (8, 16))
    inverse = cholesky_inverse(kernel_fn(means, means, bandwidth), ridge=1e-2)
    exact = kernel_fn(q, k, bandwidth)
    approximation = kernel_fn(q, means, bandwidth) @ inverse @ kernel_fn(means, k, bandwidth)
    varying = exact - exact.mean(-2, keepdim=True)  # whitening takes the means of columns off
    return float((approximation - exact).norm() / varying.norm())
