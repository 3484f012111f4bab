"""Tell whether the tests notice a slip in the code.

Without a FILE it takes the mutants of meaning_mutants.yml, which change what the code means. Of
each FILE cosmic-ray makes mutants: another operator, comparison, number, constant or loop. A mutant
is written into a copy of this checkout, where the test files that name most of its file, and those
of its folder, run until a test fails. If one survives, the exit status is 1.

Examples:
  python .dev_scripts/mutation_test.py                      # all of the file; hours
  python .dev_scripts/mutation_test.py --only models/layers
  python .dev_scripts/mutation_test.py mmlaplace/ops/precision.py --count 10
"""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

import yaml
from pages.files import ROOT

from mmlaplace.commands.command_line import ToolParser

NEAREST = 4  # test files for a mutant
LIMIT = 900  # seconds for its tests; a loop without an end counts as noticed
LEFT_OUT = 'not (build or sanitizer or wheel or docs or training or slow)'


def written_by_hand() -> Dict[str, Optional[Tuple[str, str]]]:
    """File and new source by what a mutant means; None where the code is another by now."""
    entries = yaml.safe_load(Path(__file__).with_name('meaning_mutants.yml').read_text())
    return {entry['means']: from_entry(**entry) for entry in entries}


def from_entry(file: str, old: str, new: str, means: str) -> Optional[Tuple[str, str]]:
    """A mutant that is given by two texts. Those of several lines get the indentation they need."""
    source = (ROOT / file).read_text()
    for indent in (' ' * count for count in range(0, 24, 4)):
        before = textwrap.indent(old, indent)
        if source.count(before) == 1:
            return file, source.replace(before, textwrap.indent(new, indent))
    return None


def drawn_from(file: str, count: int, seed: int) -> Iterator[Tuple[str, Tuple[str, str]]]:
    """Some of cosmic-ray's mutants of a file."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code

    source = (ROOT / file).read_text()
    nodes = list(ast_nodes(get_ast(source)))
    operators = [(name, plugins.get_operator(name)) for name in plugins.operator_names()]
    places = [
        (name, operator, place, start[0])
        for name, operator in operators
        if not operator.arguments()
        for place, (start, _) in enumerate(
            found for node in nodes for found in operator().mutation_positions(node)
        )
    ]
    for name, operator, place, line in random.Random(seed).sample(places, min(count, len(places))):
        yield f'{file}:{line}: {name}, {place}', (file, mutate_code(source, operator(), place))


def tests_of(file: str) -> List[str]:
    """The test files that name most often a file or what it defines, then those of its folder."""
    defined = re.findall(r'^(?:class|def) ([A-Za-z]\w+)', (ROOT / file).read_text(), re.M)
    telling = [name for name in defined if '_' in name or not name.islower()]
    names = re.compile(rf'\b(?:{"|".join({Path(file).stem, *telling})})\b')
    tests = sorted((ROOT / 'tests').rglob('test_*.py'))
    mentions = Counter({path: len(names.findall(path.read_text())) for path in tests})
    nearest = [path for path, times in mentions.most_common(NEAREST) if times]
    places = [str(place).removeprefix('mmlaplace/') for place in Path(file).parents][:-1]
    area = [path for place in places for path in (ROOT / 'tests' / place).glob('test_*.py')]
    return list(dict.fromkeys(str(path.relative_to(ROOT)) for path in [*nearest, *area]))


def failure(folder: Path, file: str) -> str:
    """The first test that fails in a copy of the checkout; empty if all of them pass."""
    tests = tests_of(file)
    command = [sys.executable, '-m', 'pytest', '-xq', '-p', 'no:cacheprovider', '-m', LEFT_OUT]
    try:
        result = subprocess.run(
            [*command, *tests],
            cwd=folder,
            env={**os.environ, 'PYTHONPATH': str(folder)},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return 'out of time'
    failed = [line for line in result.stdout.splitlines() if line.startswith(('FAILED', 'ERROR'))]
    return '' if result.returncode in (0, 5) else (failed or [f'status {result.returncode}'])[0]


def not_copied(folder: str, names: List[str]) -> List[str]:
    """The folders of a checkout that no test needs."""
    others = re.compile(r'\.git|\.venv.*|build|data|work_dirs')
    return [name for name in names if folder == str(ROOT) and others.fullmatch(name)]


def main() -> int:
    parser = ToolParser(__doc__)
    parser.add_argument('files', nargs='*', metavar='FILE')
    parser.add_argument('--count', type=int, default=20, help='of each FILE; default: %(default)s')
    parser.add_argument('--seed', type=int, default=0, help='of the choice; default: %(default)s')
    parser.add_argument('--only', default='', help='written by hand, in paths that have this part')
    args = parser.parse_args()
    drawn = [mutant for file in args.files for mutant in drawn_from(file, args.count, args.seed)]
    mutants = dict(drawn) if args.files else written_by_hand()
    survivors = 0
    with tempfile.TemporaryDirectory(prefix='mutants') as copy:
        folder = Path(copy, 'checkout')
        shutil.copytree(ROOT, folder, symlinks=True, ignore=not_copied)
        untouched: Dict[str, str] = {}
        for means, mutant in mutants.items():
            if mutant is None:
                print(f'the code of this one has changed: {means}')
                continue
            file, source = mutant
            if args.only not in file:
                continue
            if file not in untouched:  # a red test would kill every mutant
                untouched[file] = failure(folder, file)
            if untouched[file]:
                sys.exit(f'the tests of {file} fail without a change: {untouched[file]}')
            (folder / file).write_text(source)
            killed_by = failure(folder, file)
            shutil.copy2(ROOT / file, folder / file)
            survivors += not killed_by
            print(f'{"killed" if killed_by else "SURVIVED"}: {means} {killed_by}', flush=True)
    return int(survivors > 0)


if __name__ == '__main__':
    sys.exit(main())
