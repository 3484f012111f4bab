"""The table of the golden files that say themselves what they are of."""

import sys

from mmlaplace.writing import markdown_table

from .files import ROOT, Files

sys.path.append(str(ROOT / 'tests'))
from golden_files import described, manifests  # noqa: F401  (for the model zoo)

PAGE = ROOT / 'tests/data/golden/README.md'


def update(files: Files) -> None:
    files.tables(PAGE, 'goldens', lambda _: table())


def table() -> str:
    rows = [
        [f'`{name}`', said['module'], f'{said["repository"]}, {said["commit"]}']
        for name, said in described().items()
    ]
    header = ['file', 'module and options', 'repository, commit']
    return markdown_table(header, rows) if rows else 'There is none yet.'
