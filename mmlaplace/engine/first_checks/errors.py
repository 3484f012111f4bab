"""The error of a first check, and what is said of a check that was passed over."""

import logging

from mmengine.logging import print_log


class FirstCheckError(ValueError):
    """A run cannot work. The message is one sentence with the file, the value and the fix."""


def pass_over(reason: str) -> None:
    """Log, for developers, which check was passed over and why."""
    print_log(f'first checks: {reason}', 'current', logging.DEBUG)


def shown(names: object, most: int = 12) -> str:
    """Names in one line, of which the first few are shown."""
    found = [str(name) for name in names]  # type: ignore[attr-defined]
    return ', '.join(found[:most]) + (f', … ({len(found)})' if len(found) > most else '')
