"""Tables between two comments of a page that a person writes."""

import argparse
import re
import sys
from pathlib import Path
from typing import Callable, Dict, Union

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.writing import markdown_table

__all__ = ['ROOT', 'markdown_table', 'parser_of_pages', 'with_tables', 'write_pages']

ROOT = Path(__file__).resolve().parent.parent


def parser_of_pages(description: str) -> ToolParser:
    """A parser with the argument ``--check``."""
    parser = ToolParser(description)
    parser.add_argument('--check', action='store_true', help='only name the files not in step')
    return parser


def write_pages(pages: Dict[Path, Union[str, bytes]], args: argparse.Namespace) -> None:
    """Write the pages that have changed. With ``--check`` the script ends with their names."""
    late = {}
    for path, page in pages.items():
        content = page.encode() if isinstance(page, str) else page
        if not path.is_file() or path.read_bytes() != content:
            late[path] = content
    names = ', '.join(str(path.relative_to(ROOT)) for path in late)
    if args.check and late:
        sys.exit(f'not in step: {names}; run python .dev_scripts/{Path(sys.argv[0]).name}')
    for path, content in late.items():
        path.write_bytes(content)
    print(f'wrote {names}' if late else 'all pages are in step')


def with_tables(text: str, kind: str, table: Callable[[str], str]) -> str:
    """The text of a page with its tables made anew.

    A table is between ``<!-- KIND: NAME -->`` and ``<!-- end of KIND -->``.

    Args:
        text: The text of the page.
        kind: The kind of the tables.
        table: Function that makes the table of a name.

    Raises:
        ValueError: If a table has no end.
    """
    begin = rf'<!-- {kind}: (\S+) -->'
    end = f'<!-- end of {kind} -->'
    if len(re.findall(begin, text)) != text.count(end):
        raise ValueError(f'not each <!-- {kind}: NAME --> has its {end}; put both around a table')

    def made_anew(match: 're.Match[str]') -> str:
        return f'{match[1]}\n{table(match[2])}\n\n{match[3]}'

    return re.sub(rf'({begin}\n).*?({end})', made_anew, text, flags=re.DOTALL)
