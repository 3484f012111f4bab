"""The shell commands that fix an installation."""

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import List, Optional

import torch
from packaging.version import Version

from ..dependencies import TESTED, installed_distributions

PACKAGE = Path(__file__).resolve().parent.parent

# The running Python, as a shell finds it.
PYTHON = 'python' if shutil.which('python') == sys.executable else shlex.quote(sys.executable)
PIP = f'{PYTHON} -m pip'
# The lines of requirements/build.txt, as the wheel does not contain that file.
BUILD_TOOLS = ('setuptools>=80,<82', 'wheel', 'ninja', 'psutil', 'packaging')
INSTALL_BUILD_TOOLS = f'{PIP} install {" ".join(map(shlex.quote, BUILD_TOOLS))}'
TESTED_SET = 'bash tools/setup_env.sh  # in a clone of mmlaplace: makes .venv with a tested set'
# Distributions whose name differs from the import name.
DISTRIBUTIONS = {'cv2': 'opencv-python', 'PIL': 'pillow', 'yaml': 'pyyaml'}


def pinned(import_name: str) -> str:
    """The tested requirement for a package, such as ``onedl-mmcv==2.3.6``.

    If one mmengine is installed, the requirement comes from the set of this mmengine. Otherwise it
    is the fork's if torch is 2.4 or newer, and upstream's if torch is older.
    """
    engines = list(installed_distributions('mmengine'))
    if len(engines) == 1:
        forks = is_fork(engines[0])
    else:
        forks = Version(torch.__version__) >= Version('2.4')
    (requirement,) = [
        f'{distribution}=={newest}'
        for distribution, (_, newest) in TESTED[import_name].items()
        if is_fork(distribution) == forks
    ]
    return requirement


def is_fork(distribution: str) -> bool:
    return distribution.startswith('onedl-')


def install(*import_names: str) -> str:
    """Commands that replace OpenMMLab packages by their tested versions, or install them."""
    commands = [INSTALL_BUILD_TOOLS]
    for import_name in import_names:
        requirement = pinned(import_name)
        if import_name == 'mmcv':
            name, version = requirement.split('==')
            commands += [
                # pip's cache may have a wheel without the ops, from an isolated build.
                f'MAX_JOBS=2 {PIP} wheel --no-cache-dir --no-build-isolation --no-deps '
                f'--wheel-dir wheels {requirement}',
                f'{PIP} uninstall -y {" ".join(TESTED[import_name])} mmcv-lite',
                f'{PIP} install wheels/{name.replace("-", "_")}-{version}-*.whl',
            ]
        else:
            installed = installed_distributions(import_name)
            if installed:
                commands.append(f'{PIP} uninstall -y {" ".join(installed)}')
            # The forks are source distributions, and their builds import torch.
            commands.append(f'{PIP} install --no-build-isolation {requirement}')
    return '\n'.join(commands)


def complete_set_up() -> Optional[str]:
    """The command that installs the toolboxes that ``setup_env.sh --task classification`` omits.

    None if tools/setup_env.sh did not make this environment, or made it with all toolboxes.
    """
    environment, script = Path(sys.prefix), PACKAGE.parent / 'tools/setup_env.sh'
    state = environment / '.mmlaplace-state'
    if not (script.is_file() and state.is_file() and b' mmpretrain ' in state.read_bytes()):
        return None
    package_set = (environment / '.mmlaplace-set').read_text(encoding='utf-8').strip()
    return f'bash {shlex.quote(str(script))} --set {package_set} --venv {shlex.quote(sys.prefix)}'


def build_library() -> str:
    """Commands that install mmlaplace again, with ops compiled for this CPU and its GPUs."""
    commands = [INSTALL_BUILD_TOOLS]
    compiler = os.environ.get('CXX') or sysconfig.get_config_var('CXX') or 'c++'
    if shutil.which(compiler.split()[0]) is None:
        commands.insert(0, 'apt-get install g++  # or another C++17 compiler')
    # Without FORCE_CUDA, a build that finds no nvcc leaves the CUDA ops out.
    arches = ';'.join(sorted(set(gpu_arches())))
    switches = f'FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST="{arches}" ' if arches else ''
    if (PACKAGE.parent / 'setup.py').is_file():
        source = f'--editable {shlex.quote(str(PACKAGE.parent))}'
    else:
        source = '.  # in a clone of mmlaplace'
    commands.append(
        f'{switches}{PIP} install --no-build-isolation --force-reinstall --no-deps {source}'
    )
    return '\n'.join(commands)


def fix_import(error: Exception) -> str:
    """Commands that fix the import of an installed OpenMMLab package, from its error."""
    if 'libGL' in str(error):
        return 'apt-get install libgl1 libglib2.0-0'
    # An OpenMMLab package refuses a version of another by an assert that names the other.
    for refused in ('mmcv', 'mmengine'):
        if isinstance(error, AssertionError) and f'{refused}==' in str(error).lower():
            return install(refused)
    culprit = (getattr(error, 'name', None) or '').split('.')[0]
    if culprit in TESTED and culprit != 'torch':
        return install(culprit)
    if isinstance(error, ModuleNotFoundError):
        return f'{PIP} install {DISTRIBUTIONS.get(culprit, culprit)}'
    return TESTED_SET


def gpu_arches() -> List[str]:
    """Compute capabilities of the GPUs that torch can use, such as ``['9.0']``."""
    if not torch.cuda.is_available():
        return []
    capabilities = map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
    return ['{}.{}'.format(*capability) for capability in capabilities]
