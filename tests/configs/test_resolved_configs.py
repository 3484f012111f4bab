"""The shipped configs mean what they meant before they were rearranged.

``tests/data/resolved_configs.json.gz`` records the keys and values of every config, with those it
inherits. A wanted change goes into ``CHANGES``. Configs that are newer than the record are not in
it. To record what the configs say now, empty ``CHANGES`` and run

    python tests/configs/test_resolved_configs.py --write
"""

import gzip
import json
import re
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / 'tests/data/resolved_configs.json.gz'
LEAVES = {
    path.relative_to(ROOT / 'configs').with_suffix('').as_posix(): path
    for path in sorted(ROOT.glob('configs/*/*/*.py'))
    if '_base_' not in path.parts
}

# Wanted changes since the record, each with three parts: a pattern of configs' names, a pattern of
# lines `key = value`, and the line or lines that replace a match. An empty line is dropped.
CHANGES: list = [
    # Before their first step, all runs are checked.
    (
        '',
        r"^default_hooks\.checkpoint\.type = 'AtomicCheckpointHook'",
        r"\g<0>\ndefault_hooks.first_checks.type = 'FirstChecksHook'",
    ),
    # Sides that 32 does not divide are rounded as in the authors' code.
    (
        'segmentation/(agent/agent-pvt|xcit/|cswin/.*_upernet)',
        r'^model\.backbone\.arch = .*',
        r'\g<0>\nmodel.backbone.ceil_mode = False',
    ),
]


def flatten(value, key: str = '') -> dict:
    """The values inside of dicts and lists of dicts, by the path to them: ``{'a.0.b': '1'}``.

    Values are written as their repr, which tells tuples from lists. Empty dicts are values, too.
    """
    if isinstance(value, dict) and value:
        items = value.items()
    elif isinstance(value, (list, tuple)) and any(isinstance(v, (dict, list)) for v in value):
        items = enumerate(value)
    else:
        return {key: repr(value)}
    flat = {}
    for name, inner in items:
        flat.update(flatten(inner, f'{key}.{name}' if key else name))
    return flat


def resolve(path: Path) -> dict:
    """All that a config says and inherits."""
    return flatten(Config.fromfile(path, import_custom_modules=False).to_dict())


def lines_of(config: dict) -> set:
    return {f'{key} = {value}' for key, value in config.items()}


def changed(leaf: str, lines: set) -> set:
    for which, old, new in CHANGES:
        if re.search(which, leaf):
            lines = {part for line in lines for part in re.sub(old, new, line).split('\n')}
    return lines - {''}


@pytest.fixture(scope='module')
def record() -> dict:
    return json.loads(gzip.decompress(RECORD.read_bytes()))


def test_no_config_of_the_record_is_lost_and_each_change_is_one_of_it(record):
    assert set(record) - set(LEAVES) == set()
    for which, old, _ in CHANGES:
        lines = [lines_of(config) for leaf, config in record.items() if re.search(which, leaf)]
        assert any(re.search(old, line) for line in set().union(*lines))


@pytest.mark.sampled(12)
@pytest.mark.parametrize('leaf', LEAVES)
def test_config_means_what_it_meant(leaf, record):
    if leaf not in record:
        pytest.skip('newer than the record')
    assert lines_of(resolve(LEAVES[leaf])) == changed(leaf, lines_of(record[leaf]))


if __name__ == '__main__':
    if sys.argv[1:] != ['--write']:
        sys.exit(__doc__)
    text = json.dumps({n: resolve(path) for n, path in LEAVES.items()}, sort_keys=True, indent=0)
    RECORD.write_bytes(gzip.compress(text.encode(), mtime=0))
