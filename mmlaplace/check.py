"""Tell whether this installation works, and for every problem the commands that fix it.

It reports the versions, the compiled ops with their errors against the references, and whether the
toolboxes find our types. Exit status: 0, or 1 with a problem. Takes about ten seconds, most of
them for importing the toolboxes.

Examples:
  python -m mmlaplace.check
  python -m mmlaplace.check --json
"""

import argparse
import inspect
import json
import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
import time
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from mmengine.registry import MODELS
from packaging.version import Version
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from . import __version__, ops
from .ops import _native
from .ops._sources import source_state
from .utils.dependencies import TESTED, installed_distributions, tested_instead

TOOLBOXES = ('mmpretrain', 'mmdet', 'mmseg')
COLOURS = {'ok': 'green', 'note': 'yellow', 'problem': 'red'}
PACKAGE = Path(__file__).resolve().parent

# The Python that runs this, as a shell finds it.
PYTHON = 'python' if shutil.which('python') == sys.executable else shlex.quote(sys.executable)
PIP = f'{PYTHON} -m pip'
# requirements/build.txt, which wheels do not have.
BUILD_TOOLS = ('setuptools>=80,<82', 'wheel', 'ninja', 'psutil', 'packaging')
INSTALL_BUILD_TOOLS = f'{PIP} install {" ".join(map(shlex.quote, BUILD_TOOLS))}'
TESTED_SET = 'bash tools/setup_env.sh  # in a clone of mmlaplace: makes .venv with a tested set'
# Where the distribution has another name than the module.
DISTRIBUTIONS = {'cv2': 'opencv-python', 'PIL': 'pillow', 'yaml': 'pyyaml'}


class Finding(NamedTuple):
    """One line of the report: ``status`` is ok, note (it works, but read this) or problem."""

    name: str
    status: str
    found: str
    fix: str = ''  # shell commands, one a line


# Commands that fix something.


def pinned(import_name: str) -> str:
    """The tested requirement for a package, such as ``onedl-mmcv==2.3.6``.

    From the set whose mmengine is here; the forks, where torch is new enough, if that is not clear.
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
    """Commands that install OpenMMLab packages in their tested versions, whatever was there."""
    commands = [INSTALL_BUILD_TOOLS]
    for import_name in import_names:
        requirement = pinned(import_name)
        if import_name == 'mmcv':
            name, version = requirement.split('==')
            commands += [
                # pip may have cached the wheel of an isolated build, which has no ops.
                f'MAX_JOBS=2 {PIP} wheel --no-cache-dir --no-build-isolation --no-deps '
                f'--wheel-dir wheels {requirement}',
                f'{PIP} uninstall -y {" ".join(TESTED[import_name])} mmcv-lite',
                f'{PIP} install wheels/{name.replace("-", "_")}-{version}-*.whl',
            ]
        else:
            installed = installed_distributions(import_name)
            if installed:
                commands.append(f'{PIP} uninstall -y {" ".join(installed)}')
            # The forks come as source, whose builds want to see torch.
            commands.append(f'{PIP} install --no-build-isolation {requirement}')
    return '\n'.join(commands)


def build_library() -> str:
    """Commands that install mmlaplace again, with its ops compiled for the devices here."""
    commands = [INSTALL_BUILD_TOOLS]
    compiler = os.environ.get('CXX') or sysconfig.get_config_var('CXX') or 'c++'
    if shutil.which(compiler.split()[0]) is None:
        commands.insert(0, 'apt-get install g++  # or another C++17 compiler')
    # FORCE_CUDA, as otherwise a build without nvcc leaves the CUDA ops out.
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
    """Commands for an OpenMMLab package that is installed but does not import."""
    if 'libGL' in str(error):
        return 'apt-get install libgl1 libglib2.0-0'
    # OpenMMLab packages refuse versions of one another by an assert that names them.
    for refused in ('mmcv', 'mmengine'):
        if isinstance(error, AssertionError) and f'{refused}==' in str(error).lower():
            return install(refused)
    culprit = (getattr(error, 'name', None) or '').split('.')[0]
    if culprit in TESTED and culprit != 'torch':
        return install(culprit)
    if isinstance(error, ModuleNotFoundError):
        return f'{PIP} install {DISTRIBUTIONS.get(culprit, culprit)}'
    return TESTED_SET


# Checks, each of which returns findings.


def check_versions() -> List[Finding]:
    """What is installed, and whether it was tested."""
    return [
        Finding('mmlaplace', 'ok', f'{__version__}, with Python {platform.python_version()}'),
        *(package_version(import_name) for import_name in TESTED),
        check_numpy(),
        cuda_version(),
    ]


def check_numpy() -> Finding:
    """Whether tensors and arrays become one another; torch 2.1 knows NumPy 1 alone."""
    try:
        version = import_module('numpy').__version__
    except ImportError as error:
        return Finding('numpy', 'problem', describe(error), f'{PIP} install numpy')
    try:
        torch.from_numpy(torch.ones(1).numpy())
    except RuntimeError as error:  # 'Numpy is not available', whatever the reason
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
            f'{names} are both installed and overwrite one another',
            install(import_name),
        )
    if not installed:
        if is_there(import_name):
            return Finding(import_name, 'note', 'there, but from no distribution that was tested')
        return absent(import_name)
    if not is_there(import_name):
        return Finding(
            import_name,
            'problem',
            f'{names} is installed, but its modules are gone',
            install(import_name),
        )
    ((name, version),) = installed.items()
    origin = '' if import_name == 'torch' else f', {"fork" if is_fork(name) else "upstream"}'
    tested = tested_instead(import_name, name, version)
    if tested is not None:
        return Finding(import_name, 'note', f'{names}{origin}; tested: {tested}', TESTED_SET)
    return Finding(import_name, 'ok', names + origin)


def absent(import_name: str) -> Finding:
    """One toolbox is enough, and mmcv is only there for them."""
    toolboxes = [toolbox for toolbox in TOOLBOXES if is_there(toolbox)]
    needed = bool(toolboxes) if import_name == 'mmcv' else not toolboxes
    if import_name == 'mmcv' or is_there('mmcv'):
        fix = install(import_name)
    else:
        fix = install('mmcv', import_name)
    return Finding(import_name, 'problem' if needed else 'note', 'not installed', fix)


def is_there(import_name: str) -> bool:
    """Whether a package can be imported; a folder that only has its name is none."""
    spec = find_spec(import_name)
    return spec is not None and spec.origin is not None


def gpu_arches() -> List[str]:
    """Of every GPU that torch can use, such as ``['9.0']``."""
    if not torch.cuda.is_available():
        return []
    capabilities = map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
    return ['{}.{}'.format(*capability) for capability in capabilities]


def check_mmcv_ops() -> List[Finding]:
    """mmcv builds without its ops where it sees no torch, and says nothing."""
    if not is_there('mmcv'):
        return []
    try:
        compiled = import_module('mmcv._ext')
    except ImportError as error:
        status = 'problem' if is_there('mmdet') or is_there('mmseg') else 'note'
        if isinstance(error, ModuleNotFoundError) and error.name == 'mmcv._ext':
            found = 'mmcv was built without its compiled ops, which mmdet and mmseg need'
        else:
            found = f'does not import: {describe(error)}'
        return [Finding('mmcv._ext', status, found, fix_import(error))]
    cuda = compiled.get_compiling_cuda_version()
    if cuda == 'not available' and gpu_arches():
        found = 'compiled for the CPU alone, and there is a GPU'
        return [Finding('mmcv._ext', 'problem', found, install('mmcv'))]
    devices = 'the CPU' if cuda == 'not available' else f'the CPU and CUDA {cuda}'
    return [Finding('mmcv._ext', 'ok', f'compiled for {devices}')]


def loaded_library() -> Path:
    """The file of our compiled library."""
    (path,) = [
        path for path in PACKAGE.glob('_C*.so') if str(path.resolve()) in torch.ops.loaded_libraries
    ]
    return path


def library_problem() -> Optional[str]:
    """Why the compiled library is missing or, in a clone, not one of its sources; None if it is.

    tools/setup_env.sh asks the same, to compile it again.
    """
    if _native.WHY_MISSING is not None:
        return _native.WHY_MISSING
    sources = PACKAGE.parent / 'ops'
    if not (PACKAGE.parent / 'setup.py').is_file():  # an installed package has no sources
        return None
    path, here = loaded_library(), source_state(sources)
    compiled = _native.build_info(path).get('sources', 'unknown')
    if compiled != here:
        return f'{path.name} was compiled from other sources ({compiled}) than {sources} ({here})'
    return None


def check_library() -> List[Finding]:
    """Our compiled library: loaded or why not, and what it can run on."""
    problem = library_problem()
    if problem is not None:
        return [Finding('mmlaplace._C', 'problem', problem, build_library())]
    path = loaded_library()
    info = _native.build_info(path)
    findings = [Finding('mmlaplace._C', 'ok', f'{path.name}, compiled for torch {info["torch"]}')]
    arches = ', '.join(
        f'{int(arch) / 100:.1f}' for arch in re.findall(r'\d+', info.get('arches', ''))
    )
    capability = torch.backends.cpu.get_cpu_capability()
    compiled_for = {
        'cpu': f'compiled; of its instruction sets this CPU takes {capability}',
        'cuda': f'compiled by CUDA {info.get("cuda")} for {arches}',
    }
    for device, found in compiled_for.items():
        lacking = [name for name in native_ops() if _native.why_not(name, device) is not None]
        title = f'{device.upper()} kernels'
        if not lacking:
            findings.append(Finding(title, 'ok', found))
        elif device == 'cuda' and not gpu_arches():
            findings.append(Finding(title, 'ok', 'not compiled, and there is no GPU'))
        else:
            found = f'the library has no {", ".join(lacking)} for {device}'
            findings.append(Finding(title, 'problem', found, build_library()))
    return findings


def native_ops() -> List[str]:
    """The public ops that the compiled library may compute: those that let one choose."""
    return [
        name
        for name in ops.__all__
        if 'backend' in inspect.signature(getattr(ops, name)).parameters
    ]


def random_tokens() -> Tuple[Tensor, Tensor]:
    """Queries ``(1, 2, 37, 8)`` and keys ``(1, 2, 5, 8)``."""
    # A generator of its own, on the CPU: the same numbers everywhere.
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, 2, count, 8, generator=generator) for count in (37, 5))


def random_spd() -> Tuple[Tensor]:
    """Matrices ``(1, 2, 37, 37)`` with condition numbers below 20."""
    tokens, _ = random_tokens()
    return (ops.laplacian_kernel(tokens, tokens, 4.0, backend='reference'),)


# Inputs that get a gradient, and further arguments; a new op is a new row.
EXAMPLES: Dict[str, Tuple[Callable[[], Tuple[Tensor, ...]], tuple]] = {
    'gaussian_kernel': (random_tokens, (2.0,)),
    'laplacian_kernel': (random_tokens, (4.0,)),
    'newton_schulz_inverse': (random_spd, ()),
}
# Of the largest value. fp32 rounds by 6e-8, which short sums and condition numbers below 20 make
# 1e-6 at most; what is computed wrongly is wrong in the first digits.
TOLERANCE = 1e-5


def check_ops() -> List[Finding]:
    """Run every op forward and backward on every device, against its reference in fp64."""
    devices = ['cpu', *(f'cuda:{index}' for index in range(len(gpu_arches())))]
    return [check_op(name, torch.device(device)) for device in devices for name in native_ops()]


def check_op(name: str, device: torch.device) -> Finding:
    title = f'{name}, {device}'
    native = _native.why_not(name, device.type) is None
    fix = build_library() if native else TESTED_SET
    try:
        forward, backward = relative_errors(name, device)
    except Exception as error:  # whatever a broken build raises is what we are asked to tell
        return Finding(title, 'problem', describe(error), fix)
    found = (
        f'{"native" if native else "PyTorch reference"}, relative error {forward:.0e}, '
        f'of the gradients {backward:.0e}'
    )
    if not (forward <= TOLERANCE and backward <= TOLERANCE):  # NaN is a problem too
        found += f'; expected at most {TOLERANCE:.0e}'
        return Finding(title, 'problem', found, fix)
    return Finding(title, 'ok' if native else 'note', found)


def relative_errors(name: str, device: torch.device) -> Tuple[float, float]:
    """Of an op in fp32 against its reference in fp64: of the result, and of the gradients."""
    make_inputs, arguments = EXAMPLES[name]
    inputs = make_inputs()

    def run(dtype: torch.dtype, backend: str) -> List[Tensor]:
        leaves = [x.detach().to(device, dtype).requires_grad_() for x in inputs]
        out = getattr(ops, name)(*leaves, *arguments, backend=backend)
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    pairs = zip(run(torch.float32, 'auto'), run(torch.float64, 'reference'))
    relative = torch.stack([(x - truth).abs().max() / truth.abs().max() for x, truth in pairs])
    return relative[0].item(), relative[1:].max().item()


def check_types() -> List[Finding]:
    """Whether ``type='LaplacianFormer'`` means ours in every toolbox that is installed."""
    return [check_types_in(toolbox) for toolbox in TOOLBOXES if is_there(toolbox)]


def check_types_in(toolbox: str) -> Finding:
    ours = {
        name: cls
        for name, cls in MODELS.module_dict.items()
        if cls.__module__.startswith('mmlaplace.')
    }
    try:
        models = import_module(f'{toolbox}.registry').MODELS
        elsewhere = [name for name, cls in ours.items() if models.get(name) is not cls]
    except Exception as error:  # toolboxes refuse to import by asserts and by what they import
        found = f'does not import: {describe(error)}'
        return Finding(toolbox, 'problem', found, fix_import(error))
    if elsewhere:
        found = f'has its own {", ".join(elsewhere)}, not mmlaplace’s'
        fix = '\n'.join(f"type='mmengine.{name}'  # in configs" for name in elsewhere)
        return Finding(toolbox, 'problem', found, fix)
    return Finding(toolbox, 'ok', f'finds all {len(ours)} types of mmlaplace')


CHECKS: Dict[str, Callable[[], List[Finding]]] = {
    'versions': check_versions,
    'ops of mmcv': check_mmcv_ops,
    'compiled library': check_library,
    'ops': check_ops,
    'types': check_types,
}


def describe(error: Exception) -> str:
    return f'{type(error).__name__}: {error}'


def run_check(title: str) -> List[Finding]:
    """The findings of a check; a check that fails is one too."""
    try:
        return CHECKS[title]()
    except Exception as error:  # quoted in the report, which goes on with the other checks
        return [Finding(title, 'problem', f'the check failed: {describe(error)}', TESTED_SET)]


def versions() -> Dict[str, Optional[str]]:
    """By distribution."""
    found = dict(python=platform.python_version(), mmlaplace=__version__, cuda=torch.version.cuda)
    for import_name in TESTED:
        found.update(installed_distributions(import_name))
    return found


def show(console: Console, report: Dict[str, List[Finding]]) -> None:
    """Print the findings as a table, and the fixes as lines that can be copied."""
    table = Table()
    for column in ('', 'check', 'found'):
        table.add_column(column)
    fixes: Dict[str, List[Finding]] = {}
    for findings in report.values():
        table.add_section()
        for finding in findings:
            status = Text(finding.status, style=COLOURS[finding.status])
            table.add_row(status, Text(finding.name), Text(finding.found))
            if finding.fix:
                fixes.setdefault(finding.fix, []).append(finding)
    console.print(table)
    for fix, findings in fixes.items():
        problem = any(finding.status == 'problem' for finding in findings)
        names = ', '.join(finding.name for finding in findings)
        console.print(Text(f'\n{"To fix" if problem else "If you want"} {names}:', style='bold'))
        # Not wrapped, so that a command stays one line.
        console.print(fix, soft_wrap=True, markup=False, highlight=False)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the checks, report, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog='python -m mmlaplace.check',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--json', action='store_true', help='the report as JSON')
    args = parser.parse_args(arguments)

    start = time.perf_counter()
    report = {}
    # Stdout is for the report; packages that are imported may write to it.
    with redirect_stdout(sys.stderr), Console(stderr=True).status('') as status:
        for title in CHECKS:
            status.update(f'checking {title}')
            report[title] = run_check(title)
    seconds = time.perf_counter() - start

    problems = sum(f.status == 'problem' for findings in report.values() for f in findings)
    if args.json:
        content = dict(
            ok=not problems,
            seconds=round(seconds, 1),
            versions=versions(),
            findings=[
                dict(check=title, **finding._asdict())
                for title, findings in report.items()
                for finding in findings
            ],
        )
        sys.stdout.write(json.dumps(content, indent=2) + '\n')
    else:
        console = Console()
        show(console, report)
        verdict = f'{problems} problem{"s" * (problems != 1)}' if problems else 'All right'
        console.print(f'\n{verdict} (checked in {seconds:.0f} s)')
    return int(problems > 0)


if __name__ == '__main__':
    sys.exit(main())
