"""The toolboxes in which mmlaplace's backbones work, as a table with a row for each task."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Tuple


class Toolbox(NamedTuple):
    """The toolbox for a task.

    Attributes:
        package: Its import name, which is also the ``default_scope`` of its configs.
        tested: The oldest and the newest tested version of each distribution. A fork has the
            import name of the upstream package.
        metrics: Names of its scores in the metafiles.
        needs_mmcv_ops: Whether it imports mmcv's compiled ops.
    """

    package: str
    tested: Dict[str, Tuple[str, str]]
    metrics: Tuple[str, ...]
    needs_mmcv_ops: bool


# The task is also the folder in configs/. This file imports only the standard library, because the
# check that mmengine is installed comes later.
TOOLBOXES: Dict[str, Toolbox] = {
    'classification': Toolbox(
        package='mmpretrain',
        tested={'mmpretrain': ('1.2.0', '1.2.0'), 'onedl-mmpretrain': ('1.3.6', '1.3.6')},
        metrics=('Top 1 Accuracy',),
        needs_mmcv_ops=False,
    ),
    'detection': Toolbox(
        package='mmdet',
        tested={'mmdet': ('3.3.0', '3.3.0'), 'onedl-mmdetection': ('3.5.1', '3.5.1')},
        metrics=('box AP', 'mask AP'),
        needs_mmcv_ops=True,
    ),
    'segmentation': Toolbox(
        package='mmseg',
        tested={'mmsegmentation': ('1.2.2', '1.2.2'), 'onedl-mmsegmentation': ('1.4.2', '1.4.2')},
        metrics=('mIoU',),
        needs_mmcv_ops=True,
    ),
}
PACKAGES = tuple(toolbox.package for toolbox in TOOLBOXES.values())


def image_channels(backbone: Mapping[str, Any]) -> int:
    """The channels of the images that a backbone takes, by its dict in a config.

    Backbones call it ``in_channels``, and a few of mmpretrain's ``in_chans``. By default, it is 3.
    """
    return backbone.get('in_channels', backbone.get('in_chans', 3))


def is_there(import_name: str) -> bool:
    """Whether a package is installed. A folder without ``__init__.py`` does not count."""
    spec = find_spec(import_name)
    return spec is not None and spec.origin is not None


def require_toolbox(scope: str) -> None:
    """Raise an error if a toolbox, or the part of mmcv that it needs, is not installed.

    Raises:
        ModuleNotFoundError: If the toolbox is not installed.
        ImportError: If the toolbox needs mmcv's compiled ops, and mmcv has none.
    """
    if not is_there(scope):
        raise ModuleNotFoundError(
            f'this needs {scope}, which is not installed; run bash tools/setup_env.sh in a clone '
            'of mmlaplace, which installs the toolboxes',
            name=scope,
        )
    needs_mmcv_ops = {toolbox.package for toolbox in TOOLBOXES.values() if toolbox.needs_mmcv_ops}
    if scope in needs_mmcv_ops and not (is_there('mmcv') and is_there('mmcv._ext')):
        raise ImportError(
            f'{scope} needs mmcv with its compiled ops, which are not installed; run bash '
            'tools/setup_env.sh in a clone of mmlaplace, which builds them'
        )


def toolbox_folder(scope: str) -> Path:
    """Folder of a toolbox's package.

    Raises:
        ImportError: If :func:`require_toolbox` raises it.
    """
    require_toolbox(scope)
    spec = find_spec(scope)
    assert spec is not None and spec.submodule_search_locations is not None  # it is a package
    return Path(spec.submodule_search_locations[0])


def toolbox_script(scope: str, name: str) -> Path:
    """Path of a script of a toolbox, such as ``toolbox_script('mmdet', 'train.py')``.

    Raises:
        ImportError: If :func:`require_toolbox` raises it.
        FileNotFoundError: If the toolbox is installed without its scripts.
    """
    package = toolbox_folder(scope)
    places = (package / '.mim/tools', package.parent / 'tools')  # installed, and in a clone
    for place in places:
        if (place / name).is_file():
            return place / name
    raise FileNotFoundError(
        f'{scope} is installed without its scripts: no {name} in {" or ".join(map(str, places))}; '
        'install it again from its wheel'
    )
