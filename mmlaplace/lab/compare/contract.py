"""The contract of an attention: what hosts, training and export ask of it, point by point."""

import inspect
import time
import warnings
from typing import Collection, Dict, Iterator, NamedTuple, Optional

from ...models.known_options import did_you_mean
from .points import POINTS, Broken, Case, NotHere, seed_numbers
from .watching import line_of_class

PASSED, FAILED, NOT_PROMISED, NOT_CHECKED = 'passed', 'failed', 'not promised', 'not checked'


class Finding(NamedTuple):
    """What a check of a point found.

    Attributes:
        point: Name of the point.
        state: ``'passed'``, ``'failed'``, ``'not promised'`` or ``'not checked'``.
        text: What is wrong or was seen, or the reason why it is not promised or checked.
        line: The line of the attention's file where it is wrong, or ``''``.
        seconds: Time of the check.
    """

    point: str
    state: str
    text: str = ''
    line: str = ''
    seconds: float = 0.0


def points_not_promised(cls: type) -> Dict[str, str]:
    """The points that a class does not promise, each with the reason.

    Raises:
        ValueError: If ``not_promised`` is no dict of reasons, or names a point that there is not.
    """
    given = getattr(cls, 'not_promised', {})
    is_dict = isinstance(given, dict)
    if not is_dict or not all(isinstance(reason, str) for reason in given.values()):
        raise ValueError(
            f'{cls.__name__}.not_promised must be a dict of points and reasons, such as '
            f"dict(linear='each query reads each key'), got {given!r}"
        )
    for name in given:
        if name not in POINTS:
            near = did_you_mean(str(name), POINTS)
            raise ValueError(
                f'{cls.__name__}.not_promised has no point {name!r}{near}; the points are '
                f'{", ".join(POINTS)}'
            )
    return given


def check_contract(
    cls: type,
    options: Optional[dict] = None,
    seed: int = 0,
    points: Optional[Collection[str]] = None,
) -> Iterator[Finding]:
    """Check an attention, point by point.

    A class may say which points it does not promise, and why:
    ``not_promised = dict(linear='each query reads each key')``.

    Args:
        cls: The class.
        options: Its options. Default: None, its own defaults.
        seed: Seed of the batches, heads and channels that are tried, and of all values. Default: 0.
        points: Names of the points to check. Default: None, all.

    Yields:
        A :class:`Finding` for each point. Where no size works, the points that need one are not
        checked. Where a point fails by the error of an earlier one, its text says so.

    Raises:
        ValueError: If ``not_promised`` is no dict of reasons, or names a point that there is not.

    Examples:
        >>> from mmlaplace.lab.compare.contract import check_contract
        >>> from mmlaplace.models import LinearAttention
        >>> next(check_contract(LinearAttention)).state
        'passed'
    """
    promised_not = points_not_promised(cls)
    case = Case(cls, options or {}, inspect.getsourcefile(cls) or '', seed)
    for name in POINTS if points is None else [name for name in POINTS if name in points]:
        if name in promised_not:
            yield Finding(name, NOT_PROMISED, promised_not[name])
        elif not case.small(1):
            yield Finding(name, NOT_CHECKED, 'it needs a size that works')
        else:
            yield _checked(name, case, seed)


def _checked(name: str, case: Case, seed: int) -> Finding:
    start = time.perf_counter()
    seed_numbers(seed)
    case.doing, case.line = '', ''
    state = PASSED
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # of exporters, about their own future
            text = POINTS[name].check(case) or ''
        line = case.line
    except NotHere as error:
        state, text, line = NOT_CHECKED, str(error), ''
    except (Exception, SystemExit) as error:  # of the attention, which is what is looked for
        state = FAILED
        text, line = case.told(error)
        cause = type(error).__name__, line
        if not isinstance(error, Broken) and line:
            first = case.causes.setdefault(cause, name)
            if first != name:
                text = f'the error of {first!r} again'
        line = line or line_of_class(case.cls, case.file)
    return Finding(name, state, text, line, time.perf_counter() - start)
