"""Tell how many plausible slips in the library the tests notice.

cosmic-ray makes mutants of mmlaplace/models, ops and engine: another operator, comparison, number,
constant, decorator or loop. A sample is drawn evenly over the files. Each mutant is written into a
copy of this checkout, where the tests of its file run until one fails. Those that survive are to be
killed by a new test, or listed with a reason in tests/equivalent_mutants.yml.

A run that was stopped goes on where it was, as each result is written to --out at once.

Examples:
  python .dev_scripts/mutation_test.py                     # 300 mutants, an hour on two cores
  python .dev_scripts/mutation_test.py --only ops --count 60
  python .dev_scripts/mutation_test.py --again survivors   # those of the last run, after new tests
  python .dev_scripts/mutation_test.py --report            # the figures by file, without a run
"""

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Dict, Iterator, List

import yaml
from mutants import ROOT, Mutant, found_again, relative, sample
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

PACKAGES = ('mmlaplace/models', 'mmlaplace/ops', 'mmlaplace/engine')
EQUIVALENT = ROOT / 'tests/equivalent_mutants.yml'
# The tests that run for a file: those of the longest path that begins it, the quickest first.
TESTS = {
    'mmlaplace/ops': (
        'test_docstrings.py',
        'ops',
        'models/test_laplacian_attention.py',
        'models/test_nan.py',
        'test_check.py',
    ),
    'mmlaplace/engine': (
        'test_docstrings.py',
        'engine',
        'tools/test_faults.py',
        'models/test_backbones.py',
        'models/test_options.py',
    ),
    'mmlaplace/models': ('test_docstrings.py', 'models/test_attn_cfg.py', 'models/test_options.py'),
    'mmlaplace/models/attentions': (
        'test_docstrings.py',
        'models/test_laplacian_attention.py',
        'models/test_soft_attention.py',
        'models/test_pola_attention.py',
        'models/test_authors_attentions.py',
        'models/test_flatten_agent_xca.py',
        'models/test_classic_attentions.py',
        'models/test_vision_attentions.py',
        'models/test_memory_of_attentions.py',
        'models/test_linear.py',
        'models/test_compiled.py',
        'models/test_frame.py',
        'models/test_attentions.py',
        'models/test_attn_cfg.py',
        'models/test_golden.py',
        'engine/test_no_decay.py',
        'models/test_options.py',
    ),
    'mmlaplace/models/layers': (
        'test_docstrings.py',
        'models/test_layers.py',
        'models/test_landmarks.py',
        'models/test_frame.py',
        'models/test_soft_attention.py',
        'models/test_pola_attention.py',
        'models/test_attentions.py',
        'models/test_memory_of_attentions.py',
        'models/test_golden.py',
        'models/test_options.py',
        'models/test_backbones.py',
    ),
    'mmlaplace/models/backbones': (
        'test_docstrings.py',
        'models/test_sizes.py',
        'models/test_attn_cfg.py',
        'models/test_unchanged.py',
        'models/test_options.py',
        'models/test_backbones.py',
        'models/test_golden.py',
        'engine/test_no_decay.py',
        'engine/test_layer_decay.py',
        'engine/test_pretrained.py',
        'engine/test_checkpoint_fit.py',
        'engine/test_checkpoint_resizing.py',
    ),
}
# What takes long and sees nothing that others of these do not: compilation and large images.
LEFT_OUT = 'not compile and not 1333'
MARKERS = 'not (build or sanitizer or wheel or docs or training or slow)'
LIMIT = 900  # seconds for the tests of one mutant; a loop without an end counts as noticed


def tests_of(file: str) -> List[str]:
    """The tests that run for a file."""
    place = max((place for place in TESTS if file.startswith(place)), key=len)
    paths = [f'tests/{name}' for name in TESTS[place] if (ROOT / 'tests' / name).exists()]
    # A file's own tests, where they are named after it, come first.
    stem = Path(file).stem.strip('_').split('_')[0]
    return sorted(paths, key=lambda path: stem not in Path(path).stem)


def copy_checkout(folder: Path) -> None:
    """The files that git knows or does not ignore, and the compiled ops."""
    listed = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    libraries = [str(path.relative_to(ROOT)) for path in ROOT.glob('mmlaplace/_C*.so')]
    for name in [*filter(None, listed.split('\0')), *libraries]:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def run_tests(folder: Path, mutant: Mutant) -> dict:
    """Run a mutant's tests in a child of this process, which has imported what they need."""
    file = folder / mutant.file
    original = file.read_text()
    file.write_text(mutant.source)
    started = time.monotonic()
    report = folder / 'report.txt'
    child = os.fork()
    if child == 0:
        os.setsid()
        with report.open('w') as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        import pytest

        options = ['-x', '-q', '-p', 'no:cacheprovider', '-m', MARKERS, '-k', LEFT_OUT]
        options += ['-o', 'addopts=', '-p', 'no:warnings', '-W', 'ignore']
        # The first three alone before the others, which take seconds to collect.
        status, tests = 0, tests_of(mutant.file)
        for part in (tests[:3], tests[3:]):
            status = status or (pytest.main([*options, *part]) if part else 0)
        os._exit(status)
    try:
        status = wait_for(child, LIMIT)
    finally:
        file.write_text(original)
    outcome = 'survived' if status == 0 else 'killed'
    failed = [line for line in report.read_text(errors='replace').splitlines() if 'FAILED' in line]
    return dict(
        file=mutant.file,
        line=mutant.line,
        before=mutant.before,
        after=mutant.after,
        key=mutant.key,
        outcome=outcome,
        by='out of time' if status is None else failed[0][:200] if failed else f'status {status}',
        seconds=round(time.monotonic() - started, 1),
    )


def wait_for(child: int, limit: float):
    """The exit status of a child; None where it was stopped after ``limit`` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def work(tasks, results) -> None:
    """A worker: its own copy of the checkout, its own process that imported the libraries."""
    folder = Path(tempfile.mkdtemp(prefix='mutants'))
    try:
        copy_checkout(folder)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        os.environ.update(PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE='1')
        sys.dont_write_bytecode = True
        import_what_tests_import()
        for mutant in iter(tasks.get, None):
            results.put(run_tests(folder, mutant))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def import_what_tests_import() -> None:
    """All but mmlaplace itself, which each child imports anew."""
    listing = (
        'import sys, pytest, hypothesis, sklearn.metrics.pairwise, mmlaplace; print(*sys.modules)'
    )
    listed = subprocess.run([sys.executable, '-c', listing], capture_output=True, text=True).stdout
    for name in listed.splitlines()[-1].split():
        # Some names are made by their packages and cannot be imported.
        if not name.startswith(('mmlaplace', '__')):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


def run_all(mutants: List[Mutant], workers: int) -> Iterator[dict]:
    """The result of each mutant, as it comes."""
    # A child with threads cannot fork safely, so there are none.
    os.environ.update(OMP_NUM_THREADS='1', MKL_NUM_THREADS='1')
    context = multiprocessing.get_context('spawn')
    tasks, results = context.Queue(), context.Queue()
    processes = [context.Process(target=work, args=(tasks, results)) for _ in range(workers)]
    for process in processes:
        process.start()
    for mutant in mutants:
        tasks.put(mutant)
    for _ in processes:
        tasks.put(None)
    for _ in mutants:
        yield results.get()
    for process in processes:
        process.join()


def check_tests(files: List[Path], workers: int) -> None:
    """End unless the tests pass without a change; a red test would kill every mutant."""
    places = {tests: file for file in files for tests in [frozenset(tests_of(relative(file)))]}
    untouched = [
        Mutant(relative(file), 0, 'no change', 'no change', file.read_text())
        for file in places.values()
    ]
    for result in run_all(untouched, workers):
        if result['outcome'] != 'survived':
            sys.exit(f'the tests of {result["file"]} fail without a change: {result["by"]}')


def equivalent() -> Dict[str, str]:
    """The mutants that change nothing a user could notice, each with the reason."""
    if not EQUIVALENT.exists():
        return {}
    return {entry['mutant']: entry['why'] for entry in yaml.safe_load(EQUIVALENT.read_text())}


def show(results: Dict[str, dict]) -> float:
    """Print the figures by file and the survivors; the share killed of what is not equivalent."""
    harmless = equivalent()
    counts: Dict[str, Counter] = defaultdict(Counter)
    survivors = []
    for result in results.values():
        if ' '.join(result['before'].split()) not in ' '.join(
            (ROOT / result['file']).read_text().split()
        ):
            continue  # of a line that has changed since
        outcome = result['outcome']
        if outcome == 'survived':
            outcome = 'equivalent' if result['key'] in harmless else 'survived'
        counts[result['file']][outcome] += 1
        if outcome == 'survived':
            survivors.append(result)
    columns = ('killed', 'survived', 'equivalent')
    total = sum(counts.values(), Counter())
    share = total['killed'] / max(total['killed'] + total['survived'], 1)
    # Markdown, as docs/mutation_test.md takes it.
    table = Table('file', 'mutants', *columns, box=box.MARKDOWN)
    for file, found in [*sorted(counts.items()), ('all', total)]:
        table.add_row(file, *map(str, (found.total(), *(found[name] for name in columns))))
    console = Console(width=140)
    console.print(table)
    for result in survivors:
        console.print(f'survived: {result["key"]}', markup=False, highlight=False)
    console.print(f'killed {100 * share:.1f} % of those that are not equivalent')
    return share


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--count', type=int, default=300, help='mutants; default: %(default)s')
    parser.add_argument('--seed', type=int, default=0, help='of the sample; default: %(default)s')
    parser.add_argument('--only', default='', help='files whose path has this part; default: all')
    parser.add_argument('--workers', type=int, default=2, help='default: %(default)s')
    parser.add_argument('--again', choices=('survivors',), help='run these of --out once more')
    parser.add_argument(
        '--skip-check', action='store_true', help='do not first run the tests without a change'
    )
    parser.add_argument('--report', action='store_true', help='of --out, without running anything')
    parser.add_argument('--min-killed', type=float, default=0.9, help='default: %(default)s')
    parser.add_argument('--out', type=Path, default=ROOT / 'docs/logs/mutation_test.json')
    args = parser.parse_args()

    known = {r['key']: r for r in json.loads(args.out.read_text())} if args.out.exists() else {}
    files = [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob('*.py'))
        if path.name != '__init__.py' and args.only in str(path)
    ]
    if not args.report:
        if args.again:
            wanted = {key for key, r in known.items() if r['outcome'] == 'survived'}
            todo = list(found_again(files, wanted - set(equivalent()), args.seed))
        else:
            todo = [m for m in sample(files, args.count, args.seed) if m.key not in known]
        if not args.skip_check:
            check_tests(files, args.workers)
        random.Random(0).shuffle(todo)  # so that the progress bar tells the truth
        with Progress() as progress:
            bar = progress.add_task('mutants', total=len(todo))
            for result in run_all(todo, args.workers):
                known[result['key']] = result
                progress.advance(bar)
                args.out.parent.mkdir(parents=True, exist_ok=True)
                in_order = sorted(known.values(), key=lambda r: (r['file'], r['line'], r['key']))
                args.out.write_text(json.dumps(in_order, indent=1) + '\n')
    sys.exit(0 if show(known) >= args.min_killed else 1)


if __name__ == '__main__':
    main()
