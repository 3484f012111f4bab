"""The mutants of a file, made by cosmic-ray or written by hand, and a sample over several files."""

import difflib
import itertools
import random
import re
import textwrap
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Set

import yaml

ROOT = Path(__file__).resolve().parent.parent


class Mutant(NamedTuple):
    """One change of one line.

    Attributes:
        file: Path from the root.
        line: Number of the line, from 1.
        before, after: The line without and with the change, stripped.
        source: The whole file with the change.
        means: What it does, of one that was written by hand.
        review: Whether it was one that a review of the library found to survive.
    """

    file: str
    line: int
    before: str
    after: str
    source: str
    means: str = ''
    review: bool = False

    @property
    def key(self) -> str:
        """What tells it from others, also after lines above it changed."""
        return self.means or f'{self.file}: {self.before} -> {self.after}'


def places_of(file: Path) -> Dict[int, list]:
    """The mutants there could be on each line of a file, as pairs of operator and occurrence."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    nodes, places = list(ast_nodes(get_ast(file.read_text()))), defaultdict(list)
    for name in plugins.operator_names():
        cls = plugins.get_operator(name)
        if cls.arguments() or re.search('NoOp|(?<!Is)(?<!IsNot)_Is(Not)?$', name):
            continue  # `is` in the place of == is no slip, and mostly changes nothing
        positions = (place for node in nodes for place in cls().mutation_positions(node))
        for occurrence, (start, _) in enumerate(positions):
            places[start[0]].append((name, occurrence))
    return places


def mutant_at(file: Path, name: str, occurrence: int) -> Optional[Mutant]:
    """One mutant of a file; None where there is none, or it is no Python."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    source = file.read_text()
    mutated = mutate_code(source, plugins.get_operator(name)(), occurrence)
    if mutated is None or mutated == source:
        return None
    return describe(file, source, mutated)


def drawn_from(file: Path, seed: int) -> Iterator[Mutant]:
    """The mutants of a file in a random order: one of each line, then the next one of each."""
    chance = random.Random(f'{seed} {relative(file)}')
    places = {line: chance.sample(found, len(found)) for line, found in places_of(file).items()}
    while places:
        for line in chance.sample(sorted(places), len(places)):
            mutant = mutant_at(file, *places[line].pop())
            if not places[line]:
                del places[line]
            if mutant is not None:
                yield mutant


def describe(file: Path, source: str, mutated: str) -> Optional[Mutant]:
    """Where two sources differ; None where the change is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', SyntaxWarning)
            compile(mutated, str(file), 'exec')
    except SyntaxError:
        return None
    before, after = source.splitlines(), mutated.splitlines()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    _, start, end, new_start, new_end = next(
        block for block in matcher.get_opcodes() if block[0] != 'equal'
    )
    return Mutant(
        relative(file),
        start + 1,
        ' '.join(line.strip() for line in before[start:end]),
        ' '.join(line.strip() for line in after[new_start:new_end]),
        mutated,
    )


def sample(files: List[Path], count: int, seed: int) -> List[Mutant]:
    """About ``count`` mutants: as many of each file, where it has so many."""
    chosen, left = [], count
    for i, file in enumerate(sorted(files, key=lambda path: path.stat().st_size)):
        drawn = list(itertools.islice(drawn_from(file, seed), -(-left // (len(files) - i))))
        chosen += drawn
        left -= len(drawn)
    return chosen


def found_again(files: List[Path], keys: Set[str], seed: int) -> Iterator[Mutant]:
    """The mutants of these keys."""
    for file in files:
        missing = {key for key in keys if key.startswith(f'{relative(file)}: ')}
        mutants = drawn_from(file, seed)
        while missing:
            mutant = next(mutants, None)
            if mutant is None:  # the line is another by now
                break
            if mutant.key in missing:
                missing.remove(mutant.key)
                yield mutant


def written_by_hand() -> Dict[str, Optional[Mutant]]:
    """Those of meaning_mutants.yml by what they mean; None where the code is another by now."""
    entries = yaml.safe_load(Path(__file__).with_name('meaning_mutants.yml').read_text())
    return {entry['means']: from_entry(**entry) for entry in entries}


def from_entry(file: str, old: str, new: str, means: str, review: bool = False) -> Optional[Mutant]:
    """A mutant that is given by two texts. Those of several lines get the indentation they need."""
    source = (ROOT / file).read_text()
    for indent in (' ' * count for count in range(0, 24, 4)):
        before = textwrap.indent(old, indent)
        if source.count(before) == 1:
            mutated = source.replace(before, textwrap.indent(new, indent))
            return describe(ROOT / file, source, mutated)._replace(means=means, review=review)
    return None


def relative(file: Path) -> str:
    """A path from the root."""
    return str(file.relative_to(ROOT))
