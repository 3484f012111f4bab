"""Clear error messages for options that a class does not have."""

import inspect
from difflib import get_close_matches
from typing import Any, Collection, Iterable, List, Tuple


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """A hint at the name most like a given one, or ``''`` if none is. Case does not matter.

    Examples:
        >>> from mmlaplace.models.known_options import did_you_mean
        >>> did_you_mean('SoftmaxAtention', ['XCAttention', 'SoftmaxAttention'])
        " (did you mean 'SoftmaxAttention'?)"
    """
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(str(name).lower(), by_lower, n=1)
    return f' (did you mean {by_lower[near[0]]!r}?)' if near else ''


class KnownOptions:
    """A base whose subclasses refuse unknown keyword arguments by their own name.

    Constructors here pass ``**kwargs`` on to their base. So the error message of Python itself
    would name an abstract class, and no options.

    Attributes:
        fixed_options: Options of a base that a subclass sets itself. Users cannot set them.
            Subclasses add their own to those of their bases.
        kwargs_options: Options that the ``**kwargs`` of a constructor take beside those of its
            bases.

    Raises:
        TypeError: On construction with an unknown option. The message names the class, its options
            and those nearest to the given name.
    """

    fixed_options: Tuple[str, ...] = ()
    kwargs_options: Tuple[str, ...] = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> 'KnownOptions':
        cls.check_options(kwargs)
        return super().__new__(cls)

    @classmethod
    def check_options(cls, names: Iterable[str], hidden: Collection[str] = ()) -> None:
        """Raise a TypeError unless every name is that of an option."""
        known = [name for name in cls.known_options() if name not in hidden]
        unknown = [name for name in names if name not in known]
        if not unknown:
            return
        near = {match for name in unknown for match in get_close_matches(name, known, n=1)}
        hint = f' (did you mean {" and ".join(map(repr, sorted(near)))}?)' if near else ''
        raise TypeError(
            f'{cls.__name__} has no option {", ".join(map(repr, unknown))}'
            f'{hint}; its options are {", ".join(known)}'
        )

    @classmethod
    def known_options(cls) -> List[str]:
        """Names of the keyword arguments of the constructor and of the bases it passes them to."""
        names: List[str] = []
        for base in cls.__mro__:
            if '__init__' not in vars(base):
                continue
            parameters = inspect.signature(vars(base)['__init__']).parameters.values()
            names += [
                p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            ]
            names += vars(base).get('kwargs_options', ())
            if not any(p.kind == p.VAR_KEYWORD for p in parameters):
                break  # it hands nothing on
        fixed = {name for base in cls.__mro__ for name in vars(base).get('fixed_options', ())}
        hidden = {'self', *fixed}
        return [name for name in dict.fromkeys(names) if name not in hidden]
