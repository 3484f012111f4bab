"""Attentions of a user's own file or module, by ``file.py:Class`` or ``package.module:Class``."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Dict, List, Tuple

from mmengine.registry import MODELS

from ...models import BaseAttention, WindowAttention
from ...models.known_options import did_you_mean


def registered_attentions() -> Dict[str, type]:
    """All registered attentions by their names, but ``WindowAttention``, which has another."""
    return {
        name: cls
        for name, cls in sorted(MODELS.module_dict.items())
        if issubclass(cls, BaseAttention) and cls is not WindowAttention
    }


def name_and_options(name: str) -> Tuple[str, List[str]]:
    """The name of an attention without its options, and these, such as ``power=3``.

    The path of a file may have commas.

    Examples:
        >>> from mmlaplace.lab.side_by_side.attention_file import name_and_options
        >>> name_and_options('my, files/pola.py:MyPola, power=3, gate=false')
        ('my, files/pola.py:MyPola', ['power=3', 'gate=false'])
    """
    folder, slash, rest = name.rpartition('/') if '.py:' in name else ('', '', name)
    before, ends, after = rest.rpartition('.py:')
    kind, *options = after.split(', ')
    return f'{folder}{slash}{before}{ends}{kind}', options


def find_attention(name: str) -> type:
    """The attention of this name, registered under the name of its class.

    Args:
        name: ``path/to/file.py:Class``, ``package.module:Class``, or the name of a registered
            attention, whose end ``Attention`` may be left out.

    Raises:
        ValueError: If there is no such file, module, class or attention, if the file cannot be
            imported, or if another attention has the name of the class.

    Examples:
        >>> from mmlaplace.lab.side_by_side.attention_file import find_attention
        >>> find_attention('SOFT').__name__
        'SOFTAttention'
    """
    source, colon, cls_name = name.rpartition(':')
    if not colon:
        known = registered_attentions()
        for given in (name, f'{name}Attention'):
            if given in known:
                return known[given]
        if name.endswith('.py'):
            raise ValueError(f'{name} names a file without a class; write {name}:MyAttention')
        near = did_you_mean(name, [*known, *(full.removesuffix('Attention') for full in known)])
        raise ValueError(
            f'there is no attention {name!r}{near}; choose from '
            f'{", ".join(known)}, or name a class of your own as my_attention.py:MyAttention'
        )
    before = dict(MODELS.module_dict)
    is_file = source.endswith('.py')
    try:
        module = _module_of_file(Path(source)) if is_file else _module_of_name(source)
    except KeyError as error:  # of the registry, which has another class of this name
        if 'is already registered' not in str(error):
            raise
        raise ValueError(_taken(source, cls_name)) from error
    cls = getattr(module, cls_name, None)
    if not isinstance(cls, type):
        own = (c for c in vars(module).values() if isinstance(c, type))
        classes = [c.__name__ for c in own if c.__module__ == module.__name__]
        raise ValueError(
            f'{source} has no class {cls_name!r}{did_you_mean(cls_name, classes)}; its classes are '
            f'{classes}'
        )
    if not issubclass(cls, BaseAttention):
        raise ValueError(
            f'{source} has a class {cls_name} that is no attention: derive it from '
            'mmlaplace.models.QKVAttention and write mix(q, k, v, hw_shape), or from '
            'mmlaplace.models.BaseAttention and write forward(x, hw_shape, mask=None)'
        )
    if missing := sorted(getattr(cls, '__abstractmethods__', ())):
        raise ValueError(f'{cls_name} of {source} has no method {" and ".join(missing)}; write it')
    if before.get(cls_name, cls) is not cls:
        raise ValueError(_taken(source, cls_name))
    if cls_name not in MODELS.module_dict:
        MODELS.register_module(module=cls)
    return cls


def _taken(source: str, cls_name: str) -> str:
    return (
        f'{source} has an attention {cls_name}, and another one of this name is registered; '
        'rename your class'
    )


def _module_of_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split('.')):
        raise ValueError(f'{name!r} is neither a module nor a file; a file ends with .py')
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise ValueError(
            f'there is no module {name}; put its folder into PYTHONPATH, or name its file: '
            'folder/file.py:Class'
        )
    return _imported(name, found)


def _module_of_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        near = did_you_mean(path.name, (p.name for p in path.parent.glob('*.py')))
        raise ValueError(f'there is no file {path}{near}; check the path')
    if not path.stem.isidentifier():
        raise ValueError(
            f'{path.name} cannot be imported by a config; rename it, such as '
            f'{"".join(c if c.isidentifier() else "_" for c in path.stem)}.py'
        )
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    return _imported(path.stem, spec)


def _imported(name: str, spec: Any) -> ModuleType:
    """The module, imported under its own name, by which pickle and configs find its classes."""
    present = sys.modules.get(name)
    if present is not None:
        if getattr(present, '__file__', None) == spec.origin:
            return present
        raise ValueError(f'{spec.origin} has the name of a module that Python has; rename the file')
    module = importlib.util.module_from_spec(spec)
    before = dict(MODELS.module_dict)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        MODELS.module_dict.clear()
        MODELS.module_dict.update(before)
        if isinstance(error, KeyError) and 'is already registered' in str(error):
            raise
        line = getattr(error, 'lineno', None) if isinstance(error, SyntaxError) else None
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == spec.origin
        ]
        at = line or (lines[-1] if lines else None)
        place = f'{spec.origin}:{at}' if at else spec.origin
        if isinstance(error, SystemExit):
            raise ValueError(
                f'{place} ends Python where the file is imported; call sys.exit below '
                "if __name__ == '__main__' alone"
            ) from error
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(
            f'{place} cannot be imported ({type(error).__name__}: {reason}); mend the file'
        ) from error
    return module
