"""The lists of attentions, with their cost and published figures, of hosts and of native ops."""

import re
from pathlib import Path
from typing import List

from mmlaplace.models import BaseAttention, PyramidBackbone
from mmlaplace.ops.table import OPS
from mmlaplace.writing import markdown_table

from .files import ROOT, Files
from .options import host_of, papers, registered, section

OPS_PAGE = ROOT / 'ops/README.md'
ATTENTIONS, BACKBONES = ROOT / 'docs/api/attentions.md', ROOT / 'docs/api/backbones.md'
# In the order of the page. The attentions that are in none of these are in the last table.
TABLES = {
    'own': ('Laplacian', 'SOFT', 'Pola', 'Softmax', 'Window'),
    'classic': (
        'Linear',
        'EfficientLinear',
        'Performer',
        'Linformer',
        'Nystromformer',
        'Cosformer',
        'Hydra',
        'Skyformer',
        'Hedgehog',
        'Castling',
        'TaylorShift',
        'Based',
        'SLAB',
        'Flow',
        'Reformer',
        'Kernel',
    ),
}
# Ops without a public function, with its file, and what computes larger matrices.
PARTS = {
    '_newton_start_scale': ('ops/newton_start_scale.py', 'as `newton_schulz_inverse`'),
    '_signed_powers': ('models/layers/signed_powers.py', ''),
    '_pola_streams': ('models/layers/pola_streams.py', ''),
}
COST = re.compile(r'(.*) to mix; (.*) weights\.')


def update(files: Files) -> None:
    files.tables(ATTENTIONS, 'attentions', table)
    files.tables(BACKBONES, 'hosts', hosts)
    files.tables(OPS_PAGE, 'ops', native_ops)


def table(name: str) -> str:
    """The attentions of a table, or for ``'vision'`` those of no other."""
    known = {cls.__name__.removesuffix('Attention'): cls for cls in registered(BaseAttention)}
    listed = [short for group in TABLES.values() for short in group]
    shorts = TABLES.get(name, [short for short in known if short not in listed])
    header = ['attention', 'time', 'parameters', 'published']
    return markdown_table(header, [row(known[short]) for short in shorts])


def row(cls: type) -> List[str]:
    """An attention, with what the sections Cost and Published of its docstring say, if anything."""
    cost = COST.fullmatch(section(cls, 'Cost'))
    time, weights = cost.groups() if cost else ('–', '–')
    published = section(cls, 'Published').removesuffix('.') or '–'
    return [f'{papers(cls)} `{cls.__name__}`', time, weights, published]


def hosts(_: str) -> str:
    """The functions of the hosts, as a list of Sphinx."""
    backbones = [cls for cls in registered(PyramidBackbone) if cls is not PyramidBackbone]
    names = sorted({f'{host_of(cls).__module__}.{host_of(cls).__name__}' for cls in backbones})
    lines = ''.join(f'.. autofunction:: {name}\n' for name in names)
    return f'```{{eval-rst}}\n{lines}```'


def native_ops(_: str) -> str:
    """The compiled ops, each with the file of its function and reference."""
    public = {name: (f'ops/{name}.py', op.by_reference) for name, op in OPS.items()}
    rows = [
        [f'`{name}`', f'[{Path(file).name}](../mmlaplace/{file})', on_gpu(name), larger]
        for name, (file, larger) in {**public, **PARTS}.items()
    ]
    header = ['op', 'Python function and reference', 'CUDA', 'larger matrices, by the reference']
    return markdown_table(header, rows)


def on_gpu(name: str) -> str:
    """Whether sources for CUDA have the op."""
    sources = (path.read_text() for path in ROOT.glob('ops/*/*.cu'))
    return 'yes' if any(f'"{name}"' in text for text in sources) else "torch's operations"
