"""Lists of the package's own files: what its folders export, and the metafiles of the configs.

They are found in the files, without an import, so that a new file is known before it is imported.
"""

import ast
import re
from pathlib import Path
from typing import Iterator, List

from .files import ROOT, Files

INDEX = ROOT / 'model-index.yml'
# Folders whose __init__.py imports the public names of its files.
FOLDERS = ('models/attentions', 'models/backbones', 'ops')
IMPORT = re.compile(r'from \.(\w+) import (\w+) as \2\n')
# Lines of imports; of a long name as `ruff format` breaks the line.
BLOCK = re.compile(
    r'(?:from \.\w+ import (?:(\w+) as \1|\(\n    (\w+) as \2,\n\))\n)+',
)
WIDTH = 100  # of a line, as in pyproject.toml
ALL = re.compile(r'__all__ = \[.*?\]', re.DOTALL)
INCLUDE = re.compile(r'```\{include\} \.\./\.\./(configs/\w+/\w+)/README\.md\n.*?```\n', re.DOTALL)


def update(files: Files) -> None:
    for folder in FOLDERS:
        export(files, ROOT / 'mmlaplace' / folder)
    metafiles = sorted(path.relative_to(ROOT) for path in ROOT.glob('configs/*/*/metafile.yml'))
    files.write(INDEX, 'Import:\n' + ''.join(f'  - {path.as_posix()}\n' for path in metafiles))
    for page in sorted(ROOT.glob('docs/configs/*.md')):
        folders = [path.parent.as_posix() for path in metafiles if path.parts[1] == page.stem]
        include(files, page, folders)


def export(files: Files, folder: Path) -> None:
    """Let the ``__init__.py`` of a folder import the public names of its files.

    The lines of a file without such names, as that of a base class, are a person's, and stay.
    """
    init = folder / '__init__.py'
    text = files.read(init)
    found = {path.stem: [*public_names(path)] for path in sorted(folder.glob('[!_]*.py'))}
    by_hand = [(stem, name) for stem, name in IMPORT.findall(text) if found.get(stem) == []]
    names = sorted([*by_hand, *((stem, name) for stem in found for name in found[stem])])
    lines = ''.join(import_of(stem, name) for stem, name in names)
    exported = ''.join(f'    {name!r},\n' for name in sorted(name for _, name in names))
    text = BLOCK.sub(lines, text, count=1)
    files.write(init, ALL.sub(f'__all__ = [\n{exported}]', text))


def import_of(stem: str, name: str) -> str:
    """A line that exports a name of a file, as ``ruff format`` writes it."""
    line = f'from .{stem} import {name} as {name}'
    if len(line) <= WIDTH:
        return f'{line}\n'
    return f'from .{stem} import (\n    {name} as {name},\n)\n'


def public_names(path: Path) -> Iterator[str]:
    """The registered classes of a file. Of an op, its function, if the docstring has an example."""
    for node in ast.parse(path.read_text(encoding='utf-8')).body:
        if isinstance(node, ast.ClassDef):
            public = any('register_module' in ast.unparse(each) for each in node.decorator_list)
        else:
            of_file = isinstance(node, ast.FunctionDef) and node.name == path.stem
            public = of_file and 'Examples:' in (ast.get_docstring(node) or '')
        if public:
            yield node.name


def include(files: Files, page: Path, folders: List[str]) -> None:
    """Let a page of the site include the READMEs of these folders, new ones at its end."""
    text = files.read(page)
    known = [found for found in INCLUDE.findall(text) if found in folders]
    title, _, _ = text.partition('\n')
    parts = [
        f'```{{include}} ../../{folder}/README.md\n:heading-offset: 1\n```\n'
        for folder in [*known, *(folder for folder in folders if folder not in known)]
    ]
    files.write(page, '\n'.join([f'{title}\n', *parts]))
