"""Compile a library of our C++ sources for a runtime."""

import os
import subprocess
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Iterable, List, Sequence

FLAGS = (
    '-std=c++17',
    '-O3',
    '-g0',
    '-fPIC',
    '-fvisibility=hidden',
    '-Wall',
    '-Wno-unknown-pragmas',
    '-Wno-psabi',
)


def compile_library(
    sources: Iterable[Path], out: Path, flags: Sequence[str], link: Sequence[str] = ()
) -> None:
    """Compile and link sources. The variables ``CXX`` and ``CXXFLAGS`` work as usual.

    Args:
        sources: The sources.
        out: The library.
        flags: Flags of the compiler besides ``FLAGS``.
        link: Arguments of the linker. Default: ().

    Raises:
        FileNotFoundError: If there are no sources.
        RuntimeError: If the compiler is not there or fails; has what it says.
    """
    sources = sorted(sources)
    if not sources:
        raise FileNotFoundError('the C++ sources are missing: this tool works in a clone')
    compiler = (os.environ.get('CXX') or sysconfig.get_config_var('CXX') or 'c++').split()
    more = os.environ.get('CXXFLAGS', '').split()
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        objects = [str(Path(folder, f'{index}.o')) for index in range(len(sources))]
        for source, name in zip(sources, objects):
            run([*compiler, *FLAGS, *flags, *more, '-c', str(source), '-o', name])
        run([*compiler, '-shared', *objects, '-o', str(out), *link])


def run(command: List[str]) -> None:
    """Run a compiler."""
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f'{command[0]}: {error.strerror}; set CXX to a C++17 compiler') from None
    if result.returncode:
        raise RuntimeError(f'{" ".join(command)} failed:\n{result.stderr[:4000]}')
