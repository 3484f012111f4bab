"""Tables between two comments of a page that a person writes."""

import re
from typing import Callable, Iterable, List


def markdown_table(header: List[str], rows: Iterable[List[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ['---'] * len(header), *rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


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
    begin, end = rf'<!-- {kind}: (\S+) -->', f'<!-- end of {kind} -->'
    if len(re.findall(begin, text)) != text.count(end):
        raise ValueError(f'not each <!-- {kind}: NAME --> has its {end}; put both around a table')
    marked = re.compile(rf'({begin}\n).*?({end})', re.DOTALL)
    return marked.sub(lambda found: f'{found[1]}\n{table(found[2])}\n\n{found[3]}', text)
