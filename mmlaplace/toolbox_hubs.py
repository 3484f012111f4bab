"""The models of the zoo by name in the toolboxes: ``mmpretrain.get_model`` and all inferencers.

``import mmlaplace`` calls :func:`register_on_import`, which imports no toolbox. The names reach
mmpretrain's hub, and mmengine's inferencer, when both packages have been imported, in either order.
"""

import sys
import warnings
from functools import cache, partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, Optional

from .checkpoints.released import address_of
from .model_zoo import files_root, list_models, read_index, read_models, released_weights
from .toolboxes import TOOLBOXES


def register(hub: Any) -> None:
    """Add the classifiers to mmpretrain's ``ModelHub`` after mmpretrain has added its own.

    ``mmpretrain.get_model(NAME, pretrained=True)`` and mmpretrain's inferencers then load the
    authors' weights. Where there are none, they raise an error, as random weights would give random
    classes. A name that mmpretrain has stays its own.

    An mmlaplace without its configs adds nothing, and warns with the reason.
    """
    root = _root('mmpretrain.list_models() lacks our classifiers')
    if root is None:
        return
    add_own, add_ours = hub._register_mmpretrain_models, cache(partial(add_classifiers, hub, root))

    def add_all() -> None:
        add_own()
        add_ours()

    hub._register_mmpretrain_models = staticmethod(add_all)  # before any look into the hub


def add_classifiers(hub: Any, root: Path) -> None:
    """Add the classifiers to those that mmpretrain's ``ModelHub`` has, whose names stay its own."""
    names = list_models(task='classification')
    own = dict(hub._models_dict)
    for name in names:  # the hub refuses a name that it has
        hub._models_dict.pop(name.lower(), None)
    try:
        for metafile in read_index():
            if metafile.parts[1] == 'classification':
                hub.register_model_index(root / metafile, config_prefix=root)
        for name in names:
            hub._models_dict[name.lower()].weights = released_weights(name)
    finally:
        hub._models_dict.update(own)


def _root(lacking: str) -> Optional[Path]:
    """The folder with the configs, or None after a warning."""
    try:
        return files_root()
    except FileNotFoundError as error:
        warnings.warn(f'{lacking}: {error}', stacklevel=3)
        return None


def add_to_inferencers(base: Any) -> None:
    """Add the detectors and segmentors to the metafiles that mmengine's ``BaseInferencer`` reads.

    ``mmdet.apis.DetInferencer(NAME)`` and ``mmseg.apis.MMSegInferencer(NAME)`` then load the
    authors' weights, if none are given. Where there are none, they raise an error. A name that the
    toolbox has stays its own. Without its configs, mmlaplace adds nothing, and warns.
    """
    read_metafile = base._get_models_from_metafile

    def folder_of(scope: str) -> Optional[str]:
        try:
            return base._get_repo_or_mim_dir(scope)
        except FileNotFoundError:  # installed without its configs, so it has no inferencer by name
            return None

    def entries(folder: str) -> Iterator[Dict[str, Any]]:
        known = list(read_metafile(folder))
        yield from known
        names = {each['Name'].lower() for each in known}  # the toolbox's own come first
        tasks = [
            task
            for task, row in TOOLBOXES.items()
            if task != 'classification'
            and row.package in sys.modules
            and folder_of(row.package) == folder
        ]
        for model in read_models() if tasks and _root('inferencers lack our models') else ():
            if model.task in tasks and model.name.lower() not in names:
                place = address_of(model.name)
                yield dict(Name=model.name, Config=str(model.config), Weights=place)

    base._get_models_from_metafile = staticmethod(entries)


def import_modules(*names: str) -> None:
    """Import modules of ``mmlaplace.models`` that need a toolbox."""
    for name in names:
        import_module(f'mmlaplace.models.{name}')


# By module, what to do with it after it has run.
AFTER: Dict[str, Callable[[Any], Any]] = {
    'mmpretrain.apis.model': lambda module: register(module.ModelHub),
    'mmengine.infer.infer': lambda module: add_to_inferencers(module.BaseInferencer),
    # These register a head, and data preprocessors.
    'mmdet.models': lambda module: import_modules('ssd', 'det_preprocessor'),
    'mmseg.models': lambda module: import_modules('seg_preprocessor'),
}


class _AfterImport(MetaPathFinder):
    """Finds the modules of :data:`AFTER` as usual, and calls its functions after they have run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        spec = PathFinder.find_spec(name, path, target) if name in AFTER else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            AFTER[name](module)

        setattr(spec.loader, 'exec_module', exec_module)  # noqa: B010, mypy refuses a method
        return spec


def register_on_import() -> None:
    """Register the models now, or later when the toolboxes are imported."""
    for name, then in AFTER.items():
        if name in sys.modules:
            then(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport())
