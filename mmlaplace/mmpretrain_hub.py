"""The classifiers of the model zoo in ``mmpretrain.list_models`` and ``mmpretrain.get_model``.

``import mmlaplace`` calls :func:`register_on_import`, which does not import mmpretrain. The names
reach mmpretrain's hub when both packages have been imported, in either order.
"""

import sys
import warnings
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Optional

from .model_zoo import files_root, list_models, read_index, released_weights

HUB = 'mmpretrain.apis.model'  # the module with the class ModelHub


def register(hub: Any) -> None:
    """Add the classifiers to mmpretrain's ``ModelHub``, unless it has them.

    ``mmpretrain.get_model(NAME, pretrained=True)`` and mmpretrain's inferencers then load the
    authors' weights. Where there are none, they raise an error, as random weights would give random
    classes.

    An mmlaplace without its configs adds nothing, and warns with the reason.
    """
    try:
        root = files_root()
    except FileNotFoundError as error:
        warnings.warn(f'mmpretrain.list_models() lacks our classifiers: {error}', stacklevel=2)
        return
    classifiers = list_models(task='classification')
    if hub.has(classifiers[0]):
        return
    for metafile in read_index():
        if metafile.parts[1] == 'classification':
            hub.register_model_index(root / metafile, config_prefix=root)
    for name in classifiers:
        hub._models_dict[name.lower()].weights = released_weights(name)


class _AfterImport(MetaPathFinder):
    """Finds the module :data:`HUB` as usual, and calls :func:`register` after it has run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        spec = PathFinder.find_spec(name, path, target) if name == HUB else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            register(module.ModelHub)

        setattr(spec.loader, 'exec_module', exec_module)  # noqa: B010, mypy refuses a method
        return spec


def register_on_import() -> None:
    """Register the classifiers now, or later when mmpretrain is imported."""
    if HUB in sys.modules:
        register(sys.modules[HUB].ModelHub)
    sys.meta_path.insert(0, _AfterImport())
