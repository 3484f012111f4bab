"""Write files whole or not at all, and print with any encoding."""

import errno
import io
import os
import re
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Callable, Iterable, Iterator, Sequence, Union

PARTIAL = '.partial'


@contextmanager
def whole_file(path: Union[str, os.PathLike]) -> Iterator[Path]:
    """A context that gives a temporary path, whose file gets the name ``path`` at the end.

    The temporary path has the same file name, in a new folder beside ``path``. So any library can
    write to it, also one that goes by the suffix, and other processes may write the same file at
    the same time. Who reads ``path`` sees a whole file at any moment: the old one, or the new one.
    If the block raises an error, the old file stays, and nothing else is left. A process that is
    killed leaves a folder ``NAME.*.partial``.

    Args:
        path: The file. Its folder is made if it is missing. A link stays, and the file that it
            leads to is written. A device, such as ``/dev/stdout``, is written to itself.

    Raises:
        OSError: If the file cannot be written, as on a full disk. The message names ``path``.

    Examples:
        >>> import json, os, tempfile
        >>> from mmlaplace.writing import whole_file
        >>> folder = tempfile.mkdtemp()
        >>> with whole_file(f'{folder}/a.json') as temporary:
        ...     _ = temporary.write_text(json.dumps([1, 2]))
        >>> os.listdir(folder)
        ['a.json']
    """
    beside = ''
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            yield target
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(PARTIAL, _start(target.name), target.parent) as beside:
            temporary = Path(beside, target.name)
            yield temporary
            if target.exists():
                shutil.copymode(target, temporary)
            with open(temporary, 'rb+') as file:
                os.fsync(file.fileno())  # a new name must not reach the disk before its bytes
            os.replace(temporary, target)
    except OSError as error:
        is_of_another_file = error.filename and not str(error.filename).startswith(beside)
        if error.errno is None or is_of_another_file:
            raise
        fix = 'name another place'
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            fix = 'free space on that disk, or name another place'
        raise OSError(
            error.errno,
            f'{path} cannot be written: {os.strerror(error.errno)}. A file that was there is as '
            f'before; {fix}',
        ) from error


def _start(name: str) -> str:
    """How the temporary folder of a file begins. A long name is cut, at most 255 bytes fit."""
    return f'{name[:40]}.'


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = '---') -> str:
    """A table in Markdown. ``align`` is the line below all titles but the first."""
    lines = [header, ['---', *[align] * (len(header) - 1)], *rows]
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


def write_whole(path: Union[str, os.PathLike], content: Union[str, bytes]) -> None:
    """Write a file as :func:`whole_file` does. Text is written in UTF-8.

    Raises:
        OSError: If the file cannot be written.
    """
    with whole_file(path) as temporary, open(temporary, 'wb') as file:
        file.write(content.encode() if isinstance(content, str) else content)


def remove_partial(folder: Union[str, os.PathLike], names: str) -> None:
    """Remove the temporary folders that killed processes left, which :func:`whole_file` made.

    One that was written to in the last hour may be of a running process, and stays.

    Args:
        folder: The folder of the files.
        names: Pattern of the files' names, such as ``'*.pth'``.
    """
    for left in Path(folder).glob(f'*{PARTIAL}'):
        if not left.is_dir():  # some programs that copy files name these so
            continue
        with suppress(FileNotFoundError):  # its process has just finished
            inside = list(left.iterdir())
            cut = any(p.match(names) and left.name.startswith(_start(p.name)) for p in inside)
            written = max(path.stat().st_mtime for path in (left, *inside))
            if (cut or left.match(f'{names}.*{PARTIAL}')) and written < time.time() - 3600:
                shutil.rmtree(left)


def print_in_any_locale() -> None:
    """Let stdout print a ``?`` for a letter that its encoding lacks, as ASCII or Latin-1 do.

    Otherwise the program ends with a UnicodeEncodeError. Stderr escapes such letters by itself.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')
