"""Errors that a user understands for options that a class does not have."""

import inspect
from difflib import get_close_matches
from typing import Any, List


class KnownOptions:
    """A base whose subclasses refuse unknown keyword arguments by their own name.

    Constructors here hand ``**kwargs`` on to their base, so Python's own message would name an
    abstract class and none of the options.

    Attributes:
        fixed_options: Options of a base that a subclass sets itself and so does not take.

    Raises:
        TypeError: On construction, with the class that was asked for, the options it has and those
            nearest to what was written.
    """

    fixed_options = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> 'KnownOptions':
        known = cls.known_options()
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            near = [match for name in unknown for match in get_close_matches(name, known, n=1)]
            hint = f' (did you mean {" and ".join(map(repr, near))}?)' if near else ''
            raise TypeError(
                f'{cls.__name__} has no option {", ".join(map(repr, unknown))}{hint}; its options '
                f'are {", ".join(known)}'
            )
        return super().__new__(cls)

    @classmethod
    def known_options(cls) -> List[str]:
        """Names of the keyword arguments that the constructor and those it hands on to take."""
        names: List[str] = []
        for base in cls.__mro__:
            if '__init__' not in vars(base):
                continue
            parameters = inspect.signature(base.__init__).parameters.values()
            names += [
                p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            ]
            if not any(p.kind == p.VAR_KEYWORD for p in parameters):
                break  # it hands nothing on
        hidden = {'self', *cls.fixed_options}
        return [name for name in dict.fromkeys(names) if name not in hidden]
