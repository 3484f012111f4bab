"""Tested versions of the packages that mmlaplace uses, and errors for missing packages."""

import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Optional

from .toolboxes import TOOLBOXES

# Import name: {distribution: (oldest, newest tested version)}, as in requirements/*.txt. A fork has
# the import name of the upstream package.
TESTED = {
    'torch': {'torch': ('2.1.2', '2.14.1')},
    'mmengine': {'mmengine': ('0.10.7', '0.10.7'), 'onedl-mmengine': ('0.10.12', '0.10.12')},
    'mmcv': {'mmcv': ('2.1.0', '2.1.0'), 'onedl-mmcv': ('2.3.6', '2.3.6')},
    **{toolbox.package: toolbox.tested for toolbox in TOOLBOXES.values()},
}


def installed_distributions(import_name: str) -> dict:
    """Installed versions ``{distribution: version}`` of the tested distributions of a package."""
    installed = {}
    for distribution in TESTED[import_name]:
        try:
            installed_version = version(distribution)
        except PackageNotFoundError:
            continue
        if installed_version is not None:  # as of a folder that an interrupted removal left
            installed[distribution] = installed_version
    return installed


def missing_package(name: str, extra: str, error: ImportError) -> ImportError:
    """Make an ImportError for a missing package, which names the extra that installs it."""
    return ImportError(
        f'this needs {name}, which cannot be imported ({error}); install it with pip install '
        f'"mmlaplace[{extra}]"'
    )


def require_mmengine() -> None:
    """Raise an ImportError if mmengine cannot be imported. The message says how to install it."""
    try:
        import_module('mmengine')
    except ImportError as error:
        raise ImportError(
            'mmlaplace needs mmengine, which cannot be imported '
            f'({error}). In a clone of mmlaplace, install one of the tested sets: pip install '
            '".[onedl]" (the maintained forks, torch >= 2.4) or pip install ".[openmmlab]" (the '
            'upstream releases, torch 2.1). For mmengine alone: pip install onedl-mmengine'
        ) from error


def tested_instead(import_name: str, distribution: str, here: str) -> Optional[str]:
    """The range of tested versions, such as ``2.1.2 to 2.14.1``, or None if ``here`` is in it.

    The comparison takes the major and minor version only. What is no version is not in the range.
    """
    from packaging.version import InvalidVersion, Version

    oldest, newest = TESTED[import_name][distribution]
    before, after = (Version(text).release[:2] for text in (oldest, newest))
    try:
        if before <= Version(here).release[:2] <= after:
            return None
    except InvalidVersion:
        pass  # the caller shows it beside the range
    return oldest if oldest == newest else f'{oldest} to {newest}'


def warn_untested_versions() -> None:
    """Warn about packages that are older or newer than the tested versions.

    A warning is enough, because mmlaplace works with many untested versions. It also warns if a
    fork and its upstream package are both installed. The import of mmlaplace calls it once.
    """
    untested = []
    for import_name in TESTED:
        installed = installed_distributions(import_name)
        if len(installed) > 1:
            warnings.warn(
                f'{" and ".join(installed)} are both installed and overwrite each other in the '
                f'package {import_name}; uninstall both, then install one of them',
                stacklevel=3,
            )
        for name, here in installed.items():
            tested = tested_instead(import_name, name, here)
            if tested is not None:
                untested.append(f'{name} {tested} (here: {here})')
    if untested:
        warnings.warn(f'mmlaplace was tested with {", ".join(untested)}.', stacklevel=3)
