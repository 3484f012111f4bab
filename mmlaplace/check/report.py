"""Check this installation of mmlaplace, and print the commands that fix each problem.

The report lists the versions, the errors of the compiled ops against their references, and whether
the toolboxes find mmlaplace's types. The exit status is 0, or 1 if there is a problem. The check
takes about ten seconds, most of them for importing the toolboxes.

Examples:
  python -m mmlaplace check
  python -m mmlaplace check --json
"""

import argparse
import json
import platform
import sys
import time
from contextlib import redirect_stdout
from typing import Callable, Dict, List, Optional, Sequence

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..dependencies import TESTED, installed_distributions
from ..version import __version__
from ..writing import print_in_any_locale
from .finding import Finding, describe
from .fixes import TESTED_SET
from .library import check_library, check_ops
from .packages import check_mmcv_ops, check_types, check_versions

COLOURS = {'ok': 'green', 'note': 'yellow', 'problem': 'red'}
CHECKS: Dict[str, Callable[[], List[Finding]]] = {
    'versions': check_versions,
    'ops of mmcv': check_mmcv_ops,
    'compiled library': check_library,
    'ops': check_ops,
    'types': check_types,
}


def run_check(title: str) -> List[Finding]:
    """The findings of a check. If the check itself raises an error, this is a finding too."""
    try:
        return CHECKS[title]()
    except Exception as error:  # the report quotes it, and goes on with the other checks
        return [Finding(title, 'problem', f'the check failed: {describe(error)}', TESTED_SET)]


def versions() -> Dict[str, Optional[str]]:
    """Versions of Python, mmlaplace and CUDA, and of the other packages by distribution."""
    versions_by_name = dict(
        python=platform.python_version(), mmlaplace=__version__, cuda=torch.version.cuda
    )
    for import_name in TESTED:
        versions_by_name.update(installed_distributions(import_name))
    return versions_by_name


def show(console: Console, report: Dict[str, List[Finding]]) -> None:
    """Print the findings as a table, and the fixes as lines that can be copied."""
    table = Table()
    for column in ('', 'check', 'found'):
        table.add_column(column)
    fixes: Dict[str, List[Finding]] = {}
    for findings in report.values():
        table.add_section()
        for finding in findings:
            status = Text(finding.status, style=COLOURS[finding.status])
            table.add_row(status, Text(finding.name), Text(finding.found))
            if finding.fix:
                fixes.setdefault(finding.fix, []).append(finding)
    console.print(table)
    for fix, findings in fixes.items():
        problem = any(finding.status == 'problem' for finding in findings)
        names = ', '.join(finding.name for finding in findings)
        console.print(Text(f'\n{"To fix" if problem else "If you want"} {names}:', style='bold'))
        # Without wrapping, so that a command stays on one line.
        console.print(fix, soft_wrap=True, markup=False, highlight=False)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the checks and print the report, as ``python -m mmlaplace check`` does.

    Args:
        arguments: The command line, such as ``['--json']``. Default: None, that of the process.

    Returns:
        The exit status, 0, or 1 if there is a problem.
    """
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog='python -m mmlaplace check')
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command, and the function that runs it."""
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument('--json', action='store_true', help='the report as JSON')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the checks and print the report. The exit status is 1 if there is a problem."""
    start = time.perf_counter()
    report = {}
    # Packages may print during their import. Stdout is for the report alone.
    with redirect_stdout(sys.stderr), Console(stderr=True).status('') as status:
        for title in CHECKS:
            status.update(f'checking {title}')
            report[title] = run_check(title)
    seconds = time.perf_counter() - start

    problems = sum(f.status == 'problem' for findings in report.values() for f in findings)
    if args.json:
        content = dict(
            ok=not problems,
            seconds=round(seconds, 1),
            versions=versions(),
            findings=[
                dict(check=title, **finding._asdict())
                for title, findings in report.items()
                for finding in findings
            ],
        )
        sys.stdout.write(json.dumps(content, indent=2) + '\n')
    else:
        console = Console()
        show(console, report)
        verdict = 'All right'
        if problems:
            verdict = '1 problem' if problems == 1 else f'{problems} problems'
        console.print(f'\n{verdict} (checked in {seconds:.0f} s)')
    return int(problems > 0)
