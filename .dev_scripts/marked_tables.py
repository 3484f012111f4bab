"""Tables between two comments of a page that a person writes."""

import argparse
import sys
from pathlib import Path
from typing import Dict, Union

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.writing import markdown_table, with_tables

__all__ = ['ROOT', 'markdown_table', 'parser_of_pages', 'with_tables', 'write_pages']

ROOT = Path(__file__).resolve().parent.parent


def parser_of_pages(description: str) -> ToolParser:
    """A parser with the argument ``--check``."""
    parser = ToolParser(description)
    parser.add_argument('--check', action='store_true', help='only name the files not in step')
    return parser


def write_pages(pages: Dict[Path, Union[str, bytes]], args: argparse.Namespace) -> None:
    """Write the pages that have changed. With ``--check`` the script ends with their names."""
    contents = {
        path: page.encode() if isinstance(page, str) else page for path, page in pages.items()
    }
    late = [
        path
        for path, content in contents.items()
        if not path.is_file() or path.read_bytes() != content
    ]
    names = ', '.join(str(path.relative_to(ROOT)) for path in late)
    if args.check and late:
        sys.exit(f'not in step: {names}; run python .dev_scripts/{Path(sys.argv[0]).name}')
    for path in late:
        path.write_bytes(contents[path])
    print(f'wrote {names}' if late else 'all pages are in step')
