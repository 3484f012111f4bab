"""Folders of the package import only folders below them, in the order that CONTRIBUTING.md has."""

import ast
import re

import pytest
from conftest import ROOT

PAGE = (ROOT / 'CONTRIBUTING.md').read_text()
ROOMS = re.findall(r'^\| `mmlaplace/([\w./]+)` \|', PAGE, re.MULTILINE)  # the topmost first
PACKAGE = ROOT / 'mmlaplace'


def imported(file) -> set:
    """The rooms that a file imports, at its top or in a function; of the studies' in ``lab``."""
    found, place = set(), ['mmlaplace', *file.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = place[: len(place) - node.level + 1] if node.level else []
            path = [*base, *(node.module or '').split('.')] if node.module else base
            for alias in node.names if path[0] == 'mmlaplace' else ():
                room = [*path[1:], alias.name]
                found.add('/'.join(room[: 2 if room[0] == 'lab' else 1]))
    return {name if (PACKAGE / name).is_dir() else f'{name}.py' for name in found}


def test_every_room_is_in_the_table():
    found = [*PACKAGE.glob('*/__init__.py'), *PACKAGE.glob('lab/*/__init__.py')]
    folders = {str(path.parent.relative_to(PACKAGE)) for path in found} - {'lab'}
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.glob('lab/*.py')}
    files |= {path.name for path in PACKAGE.glob('*.py')} - {'__init__.py'}
    assert set(ROOMS) == folders | files - {'lab/__init__.py'}


@pytest.mark.parametrize('room', ROOMS)
def test_a_room_imports_only_those_below_it(room):
    place = PACKAGE / room
    below = set(ROOMS[ROOMS.index(room) :])
    for file in place.rglob('*.py') if place.is_dir() else [place]:
        assert imported(file) <= below | {'__version__.py'}, file


def test_nothing_of_the_package_imports_the_demos_or_the_studies():
    beside = {
        path.parent.name
        for room in ('demo', 'studies')
        for path in (ROOT / room).glob('*/__init__.py')
    }
    assert beside == {'explorer', 'hybrids', 'reproduction'}
    for file in PACKAGE.rglob('*.py'):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert not beside & {name.partition('.')[0] for name in names}, file
