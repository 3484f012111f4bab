"""Make the table of docs/timm.md from tests/hosts.py, whose lines tests/test_hosts.py runs.

Examples:
  python .dev_scripts/make_hosts_table.py          # the table
  python .dev_scripts/make_hosts_table.py --check  # whether it is in step, without writing
"""

import re
import sys
from pathlib import Path

from marked_tables import markdown_table, with_tables

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.writing import write_whole

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / 'tests'))
from hosts import BY_HAND, HOSTS, Host  # noqa: E402

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
    return [f'{host.package}: {", ".join(heads)}', shown, tested(host.package),
            f'`pytest tests/test_hosts.py -k {heads[0]}`']  # fmt: skip


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--check', action='store_true', help='compare, without writing')
    args = parser.parse_args()
    page = PAGE.read_text()
    header = ['host', 'lines, for the first of its heads', 'works with', 'test']
    made = with_tables(page, 'hosts', lambda _: markdown_table(header, map(row, HOSTS)))
    if args.check and made != page:
        sys.exit(f'{PAGE} is not in step; run {Path(__file__).name}')
    if not args.check:
        write_whole(PAGE, made)


if __name__ == '__main__':
    main()
