"""Generated files: their contents now, and their new ones.

It imports nothing of mmlaplace, which may not import before its own files are in step.
"""

import difflib
import re
from pathlib import Path
from typing import Callable, Dict, Union

ROOT = Path(__file__).resolve().parents[2]


class Files:
    """What generators wrote, in memory, until :meth:`save`."""

    def __init__(self) -> None:
        self.new: Dict[Path, bytes] = {}

    def read(self, path: Path) -> str:
        """The text of a file, with what a generator has changed in it."""
        return self.new[path].decode() if path in self.new else path.read_text(encoding='utf-8')

    def write(self, path: Path, content: Union[str, bytes]) -> None:
        """Let a file have this content."""
        self.new[path] = content.encode() if isinstance(content, str) else content

    def tables(self, path: Path, kind: str, table: Callable[[str], str]) -> None:
        """Make the tables of a page anew, see ``with_tables`` of ``mmlaplace.writing``."""
        from mmlaplace.writing import with_tables

        self.write(path, with_tables(self.read(path), kind, table))

    def save(self, only_tell: bool = False) -> bool:
        """Write the files whose contents change, and print what changed; whether any did.

        Args:
            only_tell: Whether to print alone. Default: False.
        """
        changed = False
        for path, content in self.new.items():
            before = path.read_bytes() if path.is_file() else None
            if content != before:
                changed = True
                print(f'{path.relative_to(ROOT)}: {difference(before or b"", content)}')
                if not only_tell:
                    path.write_bytes(content)
        return changed


def difference(before: bytes, after: bytes) -> str:
    """How many lines are new and gone, or that a file is none of text."""
    try:
        old, new = (content.decode().splitlines() for content in (before, after))
    except UnicodeDecodeError:
        return 'other bytes'
    lines = [line[0] for line in difflib.ndiff(old, new)]
    return f'{lines.count("+")} lines new, {lines.count("-")} old ones gone'


def with_count(text: str, around: str, count: int) -> str:
    """The text of a page with a number made anew.

    Args:
        text: The text of the page.
        around: A regular expression of the words around the number, which is its only group.
        count: The number.

    Raises:
        ValueError: If the page does not have these words once.
    """
    found = list(re.finditer(around, text))
    if len(found) != 1:
        raise ValueError(f'{around!r} is {len(found)} times on the page; bring it up to date')
    start, end = found[0].span(1)
    return f'{text[:start]}{count}{text[end:]}'
