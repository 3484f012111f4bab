"""Options that a backbone passes on to its host."""

import inspect
from typing import Any, Callable, List

from ..known_options import KnownOptions


class HostOptions(KnownOptions):
    """A base for classes with a ``host``, whose arguments are options of the class.

    Raises:
        TypeError: On the definition of a class that has an argument of the same name as its host.
    """

    host: Callable[..., Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        host = vars(cls).get('host')
        if host is None:
            return
        if not isinstance(host, staticmethod):  # it is a function, and no method
            cls.host = staticmethod(host)
        shared = set(inspect.signature(cls.host).parameters) & set(super().known_options())
        if shared:
            raise TypeError(
                f'the host of {cls.__name__} has arguments that the backbone itself takes, '
                f'{sorted(shared)}; rename them in the host'
            )

    @classmethod
    def known_options(cls) -> List[str]:
        host_options = inspect.signature(cls.host).parameters if hasattr(cls, 'host') else ()
        return list(dict.fromkeys([*super().known_options(), *host_options]))
