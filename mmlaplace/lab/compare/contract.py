"""The contract of an attention: what hosts, training and export ask of it, point by point."""

import inspect
import time
import warnings
from typing import Dict, Iterator, NamedTuple, Optional

import torch

from ...models.known_options import did_you_mean
from .points import POINTS, Broken, Case, NotHere
from .watching import line_of_class, line_of_error

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


def check_contract(cls: type, options: Optional[dict] = None) -> Iterator[Finding]:
    """Check an attention, point by point.

    A class may say which points it does not promise, and why:
    ``not_promised = dict(linear='each query reads each key')``.

    Args:
        cls: The class.
        options: Its options. Default: None, its own defaults.

    Yields:
        A :class:`Finding` for each point.

    Raises:
        ValueError: If ``not_promised`` names a point that there is not.

    Examples:
        >>> from mmlaplace.lab.compare.contract import check_contract
        >>> from mmlaplace.models import LinearAttention
        >>> next(check_contract(LinearAttention)).state
        'passed'
    """
    promised_not: Dict[str, str] = getattr(cls, 'not_promised', {})
    for name in promised_not:
        if name not in POINTS:
            raise ValueError(
                f'{cls.__name__}.not_promised has no point {name!r}{did_you_mean(name, POINTS)}; '
                f'the points are {", ".join(POINTS)}'
            )
    file = inspect.getsourcefile(cls) or ''
    for name in POINTS:
        if name in promised_not:
            yield Finding(name, NOT_PROMISED, promised_not[name])
            continue
        finding = _checked(name, Case(cls, options or {}, file))
        yield finding
        if name == 'build' and finding.state == FAILED:
            return  # all others would fail for the same reason


def _checked(name: str, case: Case) -> Finding:
    start = time.perf_counter()
    torch.manual_seed(0)
    state, line = PASSED, ''
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # of exporters, about their own future
            text = POINTS[name].check(case) or ''
    except NotHere as error:
        state, text = NOT_CHECKED, str(error)
    except Broken as error:
        state, text, line = FAILED, str(error), case.line
    except Exception as error:  # of the attention, which is what is looked for
        first = (str(error).strip().splitlines() or [''])[0]
        state, text = FAILED, f'{case.doing}: {type(error).__name__}: {first}'
        line = line_of_error(error, case.file)
    if state == FAILED:
        line = line or line_of_class(case.cls, case.file)
    return Finding(name, state, text, line, time.perf_counter() - start)
