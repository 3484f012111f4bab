"""Checks of other packages: their versions, mmcv's ops, and mmlaplace's types in the toolboxes."""

import platform
from importlib import import_module
from typing import List

import torch
from mmengine.registry import MODELS
from packaging.version import Version

from ..dependencies import TESTED, installed_distributions, tested_instead
from ..toolboxes import PACKAGES, TOOLBOXES, is_there
from ..version import __version__
from .finding import Finding, describe
from .fixes import PIP, TESTED_SET, complete_set_up, fix_import, gpu_arches, install, is_fork

# These are imported with the models of mmdet and of mmseg, if these are.
AFTER_TOOLBOXES = tuple(
    f'mmlaplace.models.{name}' for name in ('ssd', 'det_preprocessor', 'seg_preprocessor')
)


def check_versions() -> List[Finding]:
    """Check which versions of the packages are installed, and whether they were tested."""
    return [
        Finding('mmlaplace', 'ok', f'{__version__}, with Python {platform.python_version()}'),
        *(package_version(import_name) for import_name in TESTED),
        check_numpy(),
        cuda_version(),
    ]


def check_numpy() -> Finding:
    """Check that torch converts tensors to arrays and back. torch 2.1 needs NumPy 1 for that."""
    try:
        version = import_module('numpy').__version__
    except ImportError as error:
        return Finding('numpy', 'problem', describe(error), f'{PIP} install numpy')
    try:
        torch.from_numpy(torch.ones(1).numpy())
    except RuntimeError as error:  # 'Numpy is not available'
        found = f'torch {torch.__version__} does not work with NumPy {version} ({error})'
        major = Version(version).major
        return Finding('numpy', 'problem', found, f"{PIP} install 'numpy<{max(major, 2)}'")
    return Finding('numpy', 'ok', version)


def cuda_version() -> Finding:
    if torch.version.cuda is None:
        return Finding('CUDA', 'ok', 'torch is built without it')
    gpus = [
        f'{torch.cuda.get_device_name(index)} ({arch})' for index, arch in enumerate(gpu_arches())
    ]
    return Finding('CUDA', 'ok', f'{torch.version.cuda}, {", ".join(gpus) or "no GPU"}')


def package_version(import_name: str) -> Finding:
    installed = installed_distributions(import_name)
    names = ' and '.join(f'{name} {version}' for name, version in installed.items())
    if len(installed) > 1:
        return Finding(
            import_name,
            'problem',
            f'{names} are both installed and overwrite each other',
            install(import_name),
        )
    if not installed:
        if is_there(import_name):
            return Finding(import_name, 'note', 'installed, but not from a tested distribution')
        return absent(import_name)
    if not is_there(import_name):
        return Finding(
            import_name,
            'problem',
            f'{names} is installed, but its modules are missing',
            install(import_name),
        )
    ((name, version),) = installed.items()
    origin = '' if import_name == 'torch' else f', {"fork" if is_fork(name) else "upstream"}'
    tested = tested_instead(import_name, name, version)
    if tested is not None:
        return Finding(import_name, 'note', f'{names}{origin}; tested: {tested}', TESTED_SET)
    return Finding(import_name, 'ok', names + origin)


def absent(import_name: str) -> Finding:
    """The finding for a package that is not installed.

    It is a problem only for mmcv, if there is a toolbox: backbones alone need no toolbox.
    """
    needed = import_name == 'mmcv' and any(map(is_there, PACKAGES))
    if import_name == 'mmcv' or is_there('mmcv'):
        commands = install(import_name)
    else:
        commands = install('mmcv', import_name)
    fix = complete_set_up() or commands
    return Finding(import_name, 'problem' if needed else 'note', 'not installed', fix)


def check_mmcv_ops() -> List[Finding]:
    """Check that mmcv has its compiled ops.

    A build of mmcv that finds no torch leaves them out, without an error.
    """
    if not is_there('mmcv'):
        return []
    try:
        compiled = import_module('mmcv._ext')
    except ImportError as error:
        need_them = [t.package for t in TOOLBOXES.values() if t.needs_mmcv_ops]
        status = 'problem' if any(map(is_there, need_them)) else 'note'
        if isinstance(error, ModuleNotFoundError) and error.name == 'mmcv._ext':
            text = (
                'mmcv was built without its compiled ops: mmpretrain works, '
                f'{" and ".join(need_them)} need them'
            )
            fix = complete_set_up() or install('mmcv')
        else:
            text = f'does not import: {describe(error)}'
            fix = fix_import(error)
        return [Finding('mmcv._ext', status, text, fix)]
    cuda = compiled.get_compiling_cuda_version()
    if cuda == 'not available' and gpu_arches():
        text = 'compiled for the CPU alone, and there is a GPU'
        return [Finding('mmcv._ext', 'problem', text, install('mmcv'))]
    devices = 'the CPU' if cuda == 'not available' else f'the CPU and CUDA {cuda}'
    return [Finding('mmcv._ext', 'ok', f'compiled for {devices}')]


def check_types() -> List[Finding]:
    """Check that every installed toolbox finds mmlaplace's class by ``type='LaplacianFormer'``.

    The check includes all other types of mmlaplace.
    """
    return [check_types_in(package) for package in PACKAGES if is_there(package)]


def check_types_in(toolbox: str) -> Finding:
    ours = {
        name: cls
        for name, cls in MODELS.module_dict.items()
        if cls.__module__.startswith('mmlaplace.') and cls.__module__ not in AFTER_TOOLBOXES
    }
    try:
        models = import_module(f'{toolbox}.registry').MODELS
        elsewhere = [name for name, cls in ours.items() if models.get(name) is not cls]
    except Exception as error:  # besides ImportError, toolboxes raise AssertionError and others
        found = f'does not import: {describe(error)}'
        return Finding(toolbox, 'problem', found, fix_import(error))
    if elsewhere:
        found = f'has its own {", ".join(elsewhere)}, not mmlaplace’s'
        fix = '\n'.join(f"type='mmengine.{name}'  # in configs" for name in elsewhere)
        return Finding(toolbox, 'problem', found, fix)
    return Finding(toolbox, 'ok', f'finds all {len(ours)} types of mmlaplace')
