"""Write docs/logs/families.json: what the tests prove of the weights of each family.

It runs the tests of manifests, golden files and timm, and keeps the errors that they compare. Then
make_pages.py makes the table.

Examples:
  python .dev_scripts/prove_families.py
"""

import os
import sys
from typing import Any, Callable, Dict, List

import pytest
from pages.files import ROOT

from mmlaplace.checkpoints.published import recognise
from mmlaplace.commands.command_line import ToolParser, write_json
from mmlaplace.models import FAMILIES

LOG = ROOT / 'docs/logs/families.json'
TESTS = {
    'whole': 'tests/checkpoints/test_published.py::test_every_released_checkpoint_converts_whole',
    'timm': 'tests/checkpoints/test_published.py::test_weights_of_timm_give_its_maps_and_logits',
    'golden': 'tests/models/test_golden.py::test_converted_file_gives_the_authors_logits',
}


class Recorder:
    """A plugin of pytest: the errors that each test compares, and which tests passed."""

    def __init__(self) -> None:
        self.errors: List[float] = []
        self.passed: Dict[str, List[float]] = {}

    def pytest_collection_finish(self, session: Any) -> None:
        for module in {item.module for item in session.items}:
            sampled = getattr(module, 'sampled', lambda values: values)  # what golden files have
            module.assert_close = self.recording(module.assert_close, sampled)

    def recording(self, check: Callable, sampled: Callable) -> Callable:
        def assert_close(own: Any, released: Any, *tolerance: float) -> None:
            error = (sampled(own).flatten() - released.flatten()).abs().max()
            self.errors.append(float(error / released.abs().max()))
            check(own, released, *tolerance)

        return assert_close

    def pytest_runtest_setup(self, item: Any) -> None:
        self.errors = []  # those of a test that failed are not the next one's

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == 'call' and report.passed:
            self.passed[report.nodeid] = self.errors


def main() -> None:
    ToolParser(__doc__).parse_args()
    os.chdir(ROOT)
    recorder = Recorder()
    options = ['-q', '-n', '0', '-p', 'no:cacheprovider']
    if pytest.main([*options, *TESTS.values()], plugins=[recorder]):
        sys.exit('some tests failed, see above; nothing was written')
    passed: Dict[str, Dict[str, List[float]]] = {kind: {} for kind in TESTS}
    for node, errors in recorder.passed.items():
        test, _, name = node.rstrip(']').partition('[')
        kind = next(kind for kind, each in TESTS.items() if each.endswith(test.rpartition('::')[2]))
        passed[kind][name] = [float(f'{error:.1e}') for error in errors]
    read = sys.modules['test_golden'].read
    tables = {name: recognise(read(name)[1]) for name in passed['golden']}
    rows = {}
    for family, own in ((name, each.published) for name, each in FAMILIES.items()):
        if own:
            its_tables = {id(table) for model in own.values() for table in model.names}
            golden = {n: passed['golden'][n] for n, t in tables.items() if id(t) in its_tables}
            timm = {name: max(e) for name, e in passed['timm'].items() if name in own}
            ran = {id(tables[name]) for name in golden}
            ran |= {id(table) for name in timm for table in own[name].names}
            rows[family] = dict(
                sizes=len(own),
                whole=sum(name in own for name in passed['whole']),
                # Sizes whose names of weights are those of a model that gave the same outputs.
                outputs=[n for n, model in own.items() if ran & {id(t) for t in model.names}],
                golden=golden,
                timm=timm,
            )
    write_json(LOG, rows)
    print(f'wrote {LOG.relative_to(ROOT)}')


if __name__ == '__main__':
    main()
