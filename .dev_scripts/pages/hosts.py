"""The table of docs/timm.md from tests/hosts.py, whose lines tests/test_hosts.py runs."""

import re
import sys

from mmlaplace.writing import markdown_table

from .files import ROOT, Files

sys.path.append(str(ROOT / 'tests'))
from hosts import BY_HAND, HOSTS, Host

PAGE = ROOT / 'docs/timm.md'


def tested(package: str) -> str:
    """The version with which a host was run, and by whom."""
    if package in BY_HAND:
        return f'{BY_HAND[package]}, by hand'
    files = (ROOT / f'requirements/{name}.txt' for name in ('tests', 'onedl', 'hosts'))
    pins = dict(re.findall(r'^([\w-]+)==([\d.]+)', '\n'.join(f.read_text() for f in files), re.M))
    return f'{pins[package]}, in CI'


def row(host: Host) -> list:
    heads = list(host.heads)
    lines = host.code.replace(', **options', '')
    lines = lines.replace('HEAD', heads[0])
    shown = '<br>'.join(f'`{line}`' for line in lines.splitlines())
    return [
        f'{host.package}: {", ".join(heads)}',
        shown,
        tested(host.package),
        f'`pytest tests/test_hosts.py -k {heads[0]}`',
    ]


def update(files: Files) -> None:
    header = ['library', 'lines, for the first of its heads', 'works with', 'test']
    table = markdown_table(header, map(row, HOSTS))
    files.tables(PAGE, 'hosts', lambda _: table)
