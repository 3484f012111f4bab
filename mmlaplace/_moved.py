"""Old import paths of version 0.1. Each gives the current module, and warns with its new path."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Dict, Optional

# To be removed in version 0.3.
_ROOMS = {
    'analysis': ('attention_rows', 'complexity', 'measuring', 'networks', 'recording'),
    'deployment': ('deployable', 'exporting', 'onnx_forms', 'onnx_ops'),
    'commands': ('command_line', 'script_runs', 'toolbox_scripts'),
    'checkpoints': ('conversion',),
}
MOVED: Dict[str, str] = {
    **{f'mmlaplace.utils.{name}': f'mmlaplace.{room}.{name}'
       for room, names in _ROOMS.items() for name in names},
    'mmlaplace.utils.dependencies': 'mmlaplace.dependencies',
    'mmlaplace.utils.toolboxes': 'mmlaplace.toolboxes',
    'mmlaplace.engine.checkpoint': 'mmlaplace.checkpoints.loading',
    'mmlaplace.engine.strict_loading': 'mmlaplace.checkpoints.strict_loading',
}  # fmt: skip


class _MovedModules(MetaPathFinder, Loader):
    """Finds the modules of :data:`MOVED`, and their former package ``mmlaplace.utils``."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name == 'mmlaplace.utils':
            return ModuleSpec(name, self, is_package=True)
        return ModuleSpec(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        if old not in MOVED:
            return  # the package mmlaplace.utils, which is empty
        new = MOVED[old]
        warnings.warn(
            f'{old} is {new} now; import it from there. Version 0.3 will not have the old path',
            DeprecationWarning,
            stacklevel=2,
        )
        sys.modules[old] = import_module(new)  # the import system returns the entry of sys.modules


sys.meta_path.append(_MovedModules())
