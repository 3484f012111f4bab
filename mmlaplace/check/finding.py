"""The result of a check."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
        name: The package, library, op or toolbox that was checked.
        status: ``'ok'``, ``'note'`` or ``'problem'``. With a note, it works, but read the finding.
        found: The result of the check.
        fix: Shell commands that fix the problem, one on each line. Default: ''.
    """

    name: str
    status: str
    found: str
    fix: str = ''


def describe(error: Exception) -> str:
    """The type and the message of an error."""
    return f'{type(error).__name__}: {error}'
