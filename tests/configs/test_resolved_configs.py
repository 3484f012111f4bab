"""Every shipped config means what it meant in version 0.1.

``tests/data/resolved_configs.json.gz`` holds all keys and values of every config, with what it
inherits, as they were before the configs were rearranged. A change of meaning that is wanted goes
into ``CHANGES``. To take what the configs say now for right, empty ``CHANGES`` and run

    python tests/configs/test_resolved_configs.py --write
"""

import gzip
import json
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from mmengine.config import Config

ROOT = Path(__file__).resolve().parents[2]
LEAVES = {
    path.relative_to(ROOT / 'configs').with_suffix('').as_posix(): path
    for path in sorted(ROOT.glob('configs/*/*/*.py'))
    if '_base_' not in path.parts
}
RECORD = ROOT / 'tests/data/resolved_configs.json.gz'

# What is no longer said as it was: leaves, a regular expression for a line `key = value` of the
# record, and what stands there now. An empty line is dropped.
CHANGES = []


def flatten(value, key: str) -> dict:
    """The values inside of dicts, and of lists of dicts, by the path to them: ``{'a.b.0.c': …}``.

    A value is its repr, which tells tuples from lists. Empty dicts and lists are values.
    """
    if isinstance(value, dict) and value:
        items = value.items()
    elif isinstance(value, (list, tuple)) and any(isinstance(v, (dict, list)) for v in value):
        items = enumerate(value)
    else:
        return {key: repr(value)}
    flat = {}
    for name, inner in items:
        flat.update(flatten(inner, f'{key}.{name}' if key else str(name)))
    return flat


def resolve(path: Path) -> dict:
    """All that a config says and inherits, flat."""
    return flatten(Config.fromfile(path, import_custom_modules=False).to_dict(), '')


def as_lines(config: dict) -> set:
    return {f'{key} = {value}' for key, value in config.items()}


def changed(leaf: str, lines: set) -> set:
    """The lines of a leaf of the record, after what ``CHANGES`` says."""
    for leaves, old, new in CHANGES:
        if fnmatch(leaf, leaves):
            lines = {re.sub(old, new, line) for line in lines}
    return lines - {''}


@pytest.fixture(scope='module')
def record() -> dict:
    return json.loads(gzip.decompress(RECORD.read_bytes()))


def test_record_has_every_leaf(record):
    assert sorted(record) == sorted(LEAVES)


@pytest.mark.parametrize('leaf', LEAVES)
def test_config_means_what_it_meant(leaf, record):
    now, before = as_lines(resolve(LEAVES[leaf])), changed(leaf, as_lines(record[leaf]))
    differing = [f'- {line}' for line in before - now] + [f'+ {line}' for line in now - before]
    # By key, so that the old value stands above the new one.
    differing.sort(key=lambda line: (line[2:].split(' = ')[0], line[0] == '+'))
    assert not differing, '\n'.join([f'{leaf} differs from its record:', *differing])


def write() -> None:
    configs = {leaf: resolve(path) for leaf, path in LEAVES.items()}
    text = json.dumps(configs, sort_keys=True, indent=0)
    RECORD.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == '__main__':
    if sys.argv[1:] != ['--write']:
        sys.exit(__doc__)
    write()
