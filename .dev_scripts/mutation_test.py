"""Tell how many plausible slips in the library the tests notice.

cosmic-ray makes mutants of mmlaplace/models, ops and engine: another operator, comparison, number,
constant, decorator or loop. A sample is drawn evenly over the files. Each mutant is written into a
copy of this checkout, where the tests of its file run until one fails. Those that survive are to be
killed by a new test, or listed with a reason in tests/equivalent_mutants.yml.

With --meaning it runs those of meaning_mutants.yml, which change what the code means: the tests
that name most of a file come first, then those of its area.

A run that was stopped goes on where it was, as each result is written to --out at once.

Examples:
  python .dev_scripts/mutation_test.py                     # 300 mutants, an hour on two cores
  python .dev_scripts/mutation_test.py --only ops --count 60
  python .dev_scripts/mutation_test.py --again survivors   # those of the last run, after new tests
  python .dev_scripts/mutation_test.py --report            # the figures by file, without a run
  python .dev_scripts/mutation_test.py --meaning --workers 1
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
from mutant_tests import LEFT_OUT, rounds_of, tests_of
from mutants import ROOT, Mutant, found_again, relative, sample, written_by_hand
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

PACKAGES = ('mmlaplace/models', 'mmlaplace/ops', 'mmlaplace/checkpoints', 'mmlaplace/engine')
EQUIVALENT = ROOT / 'tests/equivalent_mutants.yml'
LIMIT = 900  # seconds for the tests of one mutant; a loop without an end counts as noticed


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

        options = ['-x', '-q', '-p', 'no:cacheprovider', '-k', LEFT_OUT]
        options += ['-o', 'addopts=', '-p', 'no:warnings', '-W', 'ignore']
        status = 0
        for part, markers in rounds_of(mutant):
            if part and status in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                status = pytest.main([*options, '-m', markers, *part])
        os._exit(0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status)
    try:
        status = wait_for(child, LIMIT)
    finally:
        file.write_text(original)
    # The tests of one that was written by hand may be many; none of those makes an endless loop.
    alive = status == 0 or (status is None and mutant.means)
    failed = [line for line in report.read_text(errors='replace').splitlines() if 'FAILED' in line]
    return dict(
        file=mutant.file,
        line=mutant.line,
        before=mutant.before,
        after=mutant.after,
        key=mutant.key,
        outcome='survived' if alive else 'killed',
        by='out of time' if status is None else failed[0][:200] if failed else f'status {status}',
        seconds=round(time.monotonic() - started, 1),
        **(dict(means=mutant.means, review=mutant.review) if mutant.means else {}),
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


def check_tests(files: List[Path], workers: int, means: str = '') -> None:
    """End unless the tests pass without a change; a red test would kill every mutant."""
    places = {tests: file for file in files for tests in [frozenset(tests_of(relative(file)))]}
    untouched = [
        Mutant(relative(file), 0, 'no change', 'no change', file.read_text(), means)
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
        file = ROOT / result['file']
        now = file.read_text() if file.is_file() else ''
        if ' '.join(result['before'].split()) not in ' '.join(now.split()):
            continue  # of a line that has changed since, or a file that has moved
        outcome = result['outcome']
        if outcome == 'survived':
            outcome = 'equivalent' if result['key'] in harmless else 'survived'
        counts[result['file']][outcome] += 1
        if outcome == 'survived':
            survivors.append(result)
    columns = ('killed', 'survived', 'equivalent')
    total = sum(counts.values(), Counter())
    share = total['killed'] / max(total['killed'] + total['survived'], 1)
    # Markdown, as docs/developers/mutation_test.md takes it.
    table = Table('file', 'mutants', *columns, box=box.MARKDOWN)
    for file, found in [*sorted(counts.items()), ('all', total)]:
        table.add_row(file, *map(str, (found.total(), *(found[name] for name in columns))))
    console = Console(width=140)
    console.print(table)
    for result in survivors:
        console.print(f'survived: {result["key"]}', markup=False, highlight=False)
    console.print(f'killed {100 * share:.1f} % of those that are not equivalent')
    return share


def show_meanings(results: Dict[str, dict]) -> float:
    """Print the figures by area, and what survived the first run; the share killed by now."""
    counts: Dict[str, Counter] = defaultdict(Counter)
    for result in results.values():
        place = Path(result['file']).parts
        area = '/'.join(place[:2]) if place[0] == 'mmlaplace' else place[0]
        area = 'those of the review' if result['review'] else area
        counts[area]['all'] += 1
        counts[area]['first'] += result['first'] == 'killed'
        counts[area]['now'] += result['outcome'] == 'killed'
    fresh = sum((found for area, found in counts.items() if 'review' not in area), Counter())
    table = Table('area', 'mutants', 'killed at first', 'killed now', box=box.MARKDOWN)
    for area, found in [*sorted(counts.items()), ('all but those of the review', fresh)]:
        table.add_row(area, *map(str, (found['all'], found['first'], found['now'])))
    console = Console(width=140)
    console.print(table)
    for result in results.values():
        if result['first'] == 'survived':
            now = '' if result['outcome'] == 'killed' else ' It survives.'
            console.print(f'- `{result["file"]}`: {result["means"]}{now}', soft_wrap=True)
    return sum(r['outcome'] == 'killed' for r in results.values()) / max(len(results), 1)


MIN_KILLED = 0.9  # of all mutants, or the exit status is 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--count', type=int, default=300, help='mutants; default: %(default)s')
    parser.add_argument('--seed', type=int, default=0, help='of the sample; default: %(default)s')
    parser.add_argument('--only', default='', help='files whose path has this part; default: all')
    parser.add_argument('--workers', type=int, default=2, help='default: %(default)s')
    parser.add_argument('--again', choices=('survivors',), help='run these of --out once more')
    parser.add_argument('--report', action='store_true', help='of --out, without running anything')
    parser.add_argument('--meaning', action='store_true', help='run those of meaning_mutants.yml')
    parser.add_argument('--out', type=Path, help='default: a file of docs/logs')
    args = parser.parse_args()
    name = 'mutation_test_meaning.json' if args.meaning else 'mutation_test.json'
    args.out = args.out or ROOT / 'docs/logs' / name

    known = {r['key']: r for r in json.loads(args.out.read_text())} if args.out.exists() else {}
    files = [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob('*.py'))
        if path.name != '__init__.py' and args.only in str(path)
    ]
    if not args.report:
        survivors = {key for key, r in known.items() if r['outcome'] == 'survived'}
        survivors -= set(equivalent())
        if args.meaning:
            written = written_by_hand()
            for means in (means for means, mutant in written.items() if mutant is None):
                print(f'the code of this one has changed: {means}')
            todo = [m for m in written.values() if m is not None and args.only in m.file]
            todo = [m for m in todo if (m.key in survivors if args.again else m.key not in known)]
            files = [ROOT / file for file in sorted({m.file for m in todo})]
        elif args.again:
            todo = list(found_again(files, survivors, args.seed))
        else:
            todo = [m for m in sample(files, args.count, args.seed) if m.key not in known]
        check_tests(files, args.workers, 'no change' * args.meaning)
        random.Random(0).shuffle(todo)  # so that the progress bar tells the truth
        with Progress() as progress:
            bar = progress.add_task('mutants', total=len(todo))
            for result in run_all(todo, args.workers):
                if args.meaning:
                    before = known.get(result['key'], {})
                    result['first'] = before.get('first', result['outcome'])
                known[result['key']] = result
                progress.advance(bar)
                args.out.parent.mkdir(parents=True, exist_ok=True)
                in_order = sorted(known.values(), key=lambda r: (r['file'], r['line'], r['key']))
                args.out.write_text(json.dumps(in_order, indent=1) + '\n')
    share = (show_meanings if args.meaning else show)(known)
    sys.exit(0 if share >= MIN_KILLED else 1)


if __name__ == '__main__':
    main()
