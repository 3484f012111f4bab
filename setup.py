"""Everything static is in pyproject.toml; this compiles the ops and adds the files mim looks for.

The ops in ``ops/`` become ``mmlaplace/_C.abi3.so`` when torch and a C++17 compiler are there.
It serves every Python, and every torch from 2.10 on. With an older torch they become
``mmlaplace/_C_torch*.so``, for that version alone. Inside pip's build isolation there is no torch:
pip install --no-build-isolation. Environment variables:

    MMLAPLACE_WITH_OPS=0     leave the ops out; their PyTorch references compute
    FORCE_CUDA=1             compile the CUDA sources without a visible GPU
    TORCH_CUDA_ARCH_LIST     CUDA architectures, as torch takes them ("8.0;9.0+PTX")
    MMLAPLACE_SANITIZE=1     instrument the CPU code with AddressSanitizer and UBSan, for tests
    MAX_JOBS, CC, CXX        as everywhere
"""

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Optional, Tuple

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
MIM_FILES = ('configs', 'tools', 'model-index.yml')
# Scripts that work in a clone alone: they set it up, or run its tests.
CLONE_ONLY = ('gpu_check.sh', 'quickstart.sh', 'run_tests.sh', 'setup_env.sh')
# What is compiled for by default, as far as the toolkit knows it; PTX of the newest for the rest.
ARCHITECTURES = ('75', '80', '86', '89', '90', '100', '120')

# ops/common/build_info.cpp says what the library was built for; this says what it was built from.
BUILD_INFO = (
    'extern "C" __attribute__((used, visibility("default"))) const char mmlaplace_build_sources[] ='
    ' "mmlaplace built for sources={};";\n'
)


class BuildWithMimFiles(build_py):
    """Put configs, tools and the model index inside the package, under ``.mim``.

    That is where mim looks. A wheel gets copies; an editable install gets links, so that edits
    show.
    """

    def run(self) -> None:
        super().run()
        base = ROOT if self.editable_mode else Path(self.build_lib)
        mim = base / 'mmlaplace' / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        ignored = shutil.ignore_patterns('__pycache__', *CLONE_ONLY)
        for name in MIM_FILES:
            source, target = ROOT / name, mim / name
            if self.editable_mode:
                target.symlink_to(os.path.relpath(source, mim))
            elif source.is_dir():
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy2(source, target)


def say(line: str) -> None:
    # To the terminal even where pip swallows the output of a build that succeeds.
    print(f'mmlaplace: {line}', file=sys.stderr, flush=True)


def compiler_problem() -> str:
    """Why no C++17 program compiles here; empty when one does."""
    compiler = os.environ.get('CXX') or sysconfig.get_config_var('CXX') or 'c++'
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / 'probe.cpp'
        source.write_text('#include <optional>\nstd::optional<int> probe() { return {}; }\n')
        command = [*compiler.split(), '-std=c++17', '-c', source.name]
        try:
            result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        except OSError as error:
            return f'{compiler}: {error.strerror}'
    lines = result.stderr.strip().splitlines() or ['no message']
    return f'{compiler} does not compile C++17 ({lines[0]})' if result.returncode else ''


def native_extension() -> dict:
    """The arguments of ``setup`` that compile the ops; none where that cannot be."""
    if os.environ.get('MMLAPLACE_WITH_OPS') == '0':
        say('no compiled ops: MMLAPLACE_WITH_OPS=0')
        return {}
    force_cuda = os.environ.get('FORCE_CUDA') == '1'
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError as error:
        if force_cuda:
            sys.exit(f'mmlaplace: FORCE_CUDA=1, but {error}: pip install --no-build-isolation')
        say(f'no compiled ops: {error}. To have them: pip install --no-build-isolation')
        return {}
    problem = compiler_problem()
    if problem:
        if force_cuda:
            sys.exit(f'mmlaplace: FORCE_CUDA=1, but {problem}; install g++ or set CXX')
        say(f'no compiled ops: {problem}. To have them, install g++ or set CXX')
        return {}

    with_cuda = force_cuda or (os.environ.get('FORCE_CUDA') != '0' and torch.cuda.is_available())
    nvcc = Path(cpp_extension.CUDA_HOME or '/') / 'bin' / 'nvcc'
    missing = missing_for_cuda(torch, nvcc)
    if with_cuda and missing:
        if force_cuda:
            sys.exit(f'mmlaplace: FORCE_CUDA=1, but {missing}')
        say(f'ops for the CPU alone: {missing}')
        with_cuda = False
    return extension_of(torch, cpp_extension, nvcc if with_cuda else None)


def missing_for_cuda(torch, nvcc: Path) -> str:
    """Why the CUDA sources cannot be compiled for this torch; empty if they can."""
    if torch.version.cuda is None:
        return f'torch {torch.__version__} is built without CUDA: install one that has it'
    if not nvcc.is_file():
        return (
            f'there is no nvcc: install the CUDA {torch.version.cuda} toolkit and set CUDA_HOME '
            f'(now {os.environ.get("CUDA_HOME")!r})'
        )
    said = subprocess.run([str(nvcc), '--version'], capture_output=True, text=True).stdout
    release = re.search(r'release (\d+)\.', said)
    if release and release[1] != torch.version.cuda.split('.')[0]:
        return (
            f'{nvcc} is of CUDA {release[1]}, and torch {torch.__version__} is of another: '
            f'install the CUDA {torch.version.cuda} toolkit and set CUDA_HOME'
        )
    return ''


def extension_of(torch, cpp_extension, nvcc: Optional[Path]) -> dict:
    """The arguments of ``setup`` for the ops, with those for CUDA if there is its compiler."""
    native = runpy.run_path(str(ROOT / 'mmlaplace/ops/_sources.py'))

    def files(*suffixes: str) -> list:
        paths = native['library_sources'](ROOT / 'ops')
        return [str(path.relative_to(ROOT)) for path in paths if path.suffix in suffixes]

    sources = files('.cpp')
    version = tuple(map(int, torch.__version__.split('.')[:2]))
    stable = version >= (2, 10)  # see ops/common/tensor.h
    cpu_flags, link_flags = compiler_flags(torch.backends.cpu.get_cpu_capability())
    flags = {'cxx': cpu_flags}
    architectures, headers, libraries = [], [], []
    if nvcc is not None:
        sources += files('.cu')
        # The C functions for CUDA are there with these alone.
        flags['nvcc'] = ['-O3', '-lineinfo', '-DUSE_CUDA', '-DMMLAPLACE_WITH_CUDA']
        cpu_flags += ['-DUSE_CUDA', '-DMMLAPLACE_WITH_CUDA']
        toolkit = cuda_toolkit(nvcc)
        headers, libraries = cuda_headers(toolkit), cuda_libraries(toolkit)
        if 'TORCH_CUDA_ARCH_LIST' in os.environ:  # torch makes the flags of it
            architectures = [os.environ['TORCH_CUDA_ARCH_LIST']]
        else:
            architectures = cuda_architectures(nvcc)
            flags['nvcc'] += architectures

    make = cpp_extension.CUDAExtension if nvcc else cpp_extension.CppExtension
    extension = make(
        # One for each older torch, so that environments can share a source folder.
        'mmlaplace._C' if stable else 'mmlaplace._C_torch{}{}'.format(*version),
        sources,
        depends=files('.h', '.cuh'),
        extra_compile_args=flags,
        extra_link_args=link_flags,
        include_dirs=headers,
        library_dirs=libraries,
    )
    # Nothing of Python is in it: one library serves every Python version. And where it uses the
    # stable ABI, nothing of the C++ classes of torch.
    unused = ('torch_python', 'c10', 'c10_cuda', 'torch') if stable else ('torch_python',)
    extension.libraries = [name for name in extension.libraries if name not in unused]

    say(
        f'compiled ops for torch {torch.__version__}: {len(sources)} sources, CPU'
        + (f' and CUDA {torch.version.cuda} ({" ".join(architectures)})' if nvcc else '')
        + ('' if nvcc else '; CUDA only with a visible GPU or FORCE_CUDA=1')
    )

    return {
        'ext_modules': [extension],
        'cmdclass': build_commands(cpp_extension, extension, native),
    }


def compiler_flags(capability: str) -> Tuple[list, list]:
    """Flags for compiling and for linking; ``capability`` names this machine's vectors."""
    # -fopenmp only where torch's parallel_for is compiled: the runtime is the one torch loaded.
    # Without libgomp named at link time a process never has two, whose threads would compete.
    cpu_flags = [
        '-O3',
        '-fopenmp',
        '-fvisibility=hidden',
        '-Wall',
        '-Wno-unknown-pragmas',
        '-Wno-psabi',
        '-g0',
    ]
    link_flags = ['-Wl,-z,now'] if sys.platform == 'linux' else []
    if sys.platform == 'darwin':  # Apple's clang has no OpenMP
        cpu_flags.remove('-fopenmp')
    if os.environ.get('MMLAPLACE_SANITIZE') == '1':
        sanitizers = ['-fsanitize=address,undefined', '-fno-sanitize-recover=undefined']
        # Unoptimised, which halves the minutes of compiling, and the tests' sizes are small.
        cpu_flags += [*sanitizers, '-O0', '-g1', '-fno-omit-frame-pointer']
        # One version of the kernels, this machine's, since three take minutes.
        vectors = dict(AVX512=64, AVX2=32).get(capability, 16)
        cpu_flags.append(f'-DMMLAPLACE_VECTOR_BYTES={vectors}')
        link_flags = sanitizers
    return cpu_flags, link_flags


def build_commands(cpp_extension, extension, native: dict) -> dict:
    """Commands that build the ops with a mark of their sources, and a wheel for every Python."""

    class BuildOps(cpp_extension.BuildExtension.with_options(no_python_abi_suffix=True)):
        def build_extensions(self) -> None:
            # A source of its own, so that a change of one does not compile the others again.
            text = BUILD_INFO.format(native['source_state'](ROOT / 'ops'))
            source = Path(self.build_temp) / 'build_info_sources.cpp'
            if not source.is_file() or source.read_text(encoding='utf-8') != text:
                source.parent.mkdir(parents=True, exist_ok=True)
                source.write_text(text, encoding='utf-8')
            extension.sources.append(str(source))
            super().build_extensions()

        def get_ext_filename(self, name: str) -> str:
            # The suffix that other libraries for every Python have.
            return super().get_ext_filename(name).replace('_C.so', '_C.abi3.so')

    cmdclass = {'build_ext': BuildOps}
    try:
        from setuptools.command.bdist_wheel import bdist_wheel
    except ImportError:  # setuptools < 70.1 leaves that to the wheel package
        pass
    else:

        class WheelForEveryPython(bdist_wheel):
            def get_tag(self) -> tuple:
                return 'py3', 'none', super().get_tag()[2]

        cmdclass['bdist_wheel'] = WheelForEveryPython
    return cmdclass


def cuda_architectures(nvcc: Path) -> list:
    """The -gencode flags of the default architectures that this toolkit knows."""
    listed = subprocess.run(
        [nvcc, '--list-gpu-arch'], capture_output=True, text=True, check=True
    ).stdout
    known = [number for number in ARCHITECTURES if re.search(rf'compute_{number}\b', listed)]
    newest = known[-1]
    return [
        *(f'-gencode=arch=compute_{number},code=sm_{number}' for number in known),
        f'-gencode=arch=compute_{newest},code=compute_{newest}',
    ]


def cuda_toolkit(nvcc: Path) -> Path:
    """Where the toolkit of ``nvcc`` is, which may be a link to it or a script that calls it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / 'probe.cu'
        source.touch()
        plan = subprocess.run(
            [nvcc, '--dryrun', '-c', source.name], cwd=folder, capture_output=True, text=True
        ).stderr
    top = re.search(r'^#\$ TOP=(.+)$', plan, re.MULTILINE)
    return Path(top.group(1)).resolve() if top else nvcc.resolve().parent.parent


def cuda_headers(toolkit: Path) -> list:
    """Where torch's pip packages keep the headers of cuBLAS and its kin, if the toolkit lacks them.

    Some of torch's own CUDA headers include them; a toolkit without its libraries has none.
    """
    if (toolkit / 'include' / 'cublas_v2.h').is_file():
        return []
    folders = {
        str(header.parent)
        for place in {sysconfig.get_path('purelib'), sysconfig.get_path('platlib')}
        for name in ('cublas_v2.h', 'cusparse.h', 'cusolverDn.h')
        for header in Path(place, 'nvidia').glob(f'*/include/{name}')
    }
    # The toolkit's own first: the pip packages may hold another release of the CUDA runtime.
    return [str(toolkit / 'include'), *sorted(folders)]


def cuda_libraries(toolkit: Path) -> list:
    """Where the toolkit keeps libcudart.so, which torch looks for in lib64 alone."""
    folders = (toolkit / 'lib64', toolkit / 'lib', *toolkit.glob('targets/*/lib'))
    return [str(folder) for folder in folders if (folder / 'libcudart.so').exists()][:1]


arguments = native_extension()
arguments.setdefault('cmdclass', {})['build_py'] = BuildWithMimFiles
# The licence stands here, as pyproject.toml has no form of it that setuptools reads both before
# version 77 and, without a warning, since then.
setup(license='Apache-2.0', **arguments)
