"""Make the table of docs/timm.md from tests/hosts.py, whose lines tests/test_hosts.py runs.

Examples:
  python .dev_scripts/make_hosts_table.py          # the table
  python .dev_scripts/make_hosts_table.py --check  # whether it is in step, without writing
"""

import re
import sys

from marked_tables import ROOT, markdown_table, parser_of_pages, with_tables, write_pages

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


def main() -> None:
    args = parser_of_pages(__doc__).parse_args()
    header = ['host', 'lines, for the first of its heads', 'works with', 'test']
    table = markdown_table(header, map(row, HOSTS))
    write_pages({PAGE: with_tables(PAGE.read_text(), 'hosts', lambda _: table)}, args)


if __name__ == '__main__':
    main()
