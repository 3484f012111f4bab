"""What a check finds."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One line of the report: ``status`` is ok, note (it works, but read this) or problem."""

    name: str
    status: str
    found: str
    fix: str = ''  # shell commands, one a line


def describe(error: Exception) -> str:
    """An error with its type, on one line."""
    return f'{type(error).__name__}: {error}'
