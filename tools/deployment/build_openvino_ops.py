"""Compile mmlaplace's operators for OpenVINO, which export.py --backend native needs.

The tool needs a C++17 compiler, the sources of a clone, and the Python package of OpenVINO, which
has its headers and libraries: pip install openvino. The library runs in that version alone, so its
name has the version, and it shares the threads of OpenVINO. Build it again after an update. It does
not need PyTorch. CXX and CXXFLAGS work as usual.

Examples:
  python tools/deployment/build_openvino_ops.py
  python tools/deployment/build_openvino_ops.py --out operators.so
"""

from pathlib import Path
from typing import List

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.commands.compiling import compile_library
from mmlaplace.deployment.openvino_runtime import library_path, require_openvino

SOURCES = Path(__file__).resolve().parents[2] / 'ops'
# The parts of OpenVINO that are linked, and the threads that it brings.
LIBRARIES = ('libopenvino.so.*', 'libopenvino_onnx_frontend.so.*', 'libtbb.so.*')
FLAGS = ('-DMMLAPLACE_OPENVINO', '-DTBB_PREVIEW_WAITING_FOR_WORKERS=1')


def libraries_in(folder: Path) -> List[Path]:
    """The libraries of OpenVINO that are linked.

    Raises:
        FileNotFoundError: If one is not there, as in packages of Linux distributions.
    """
    found = []
    for pattern in LIBRARIES:
        paths = sorted(folder.glob(pattern))
        if not paths:
            raise FileNotFoundError(
                f'no {pattern} in {folder}; take the package of OpenVINO from PyPI, which has it: '
                'pip install --force-reinstall openvino'
            )
        found.append(paths[-1])
    return found


def build(out: Path) -> None:
    """Compile the library for the OpenVINO that is installed.

    Args:
        out: The library.

    Raises:
        FileNotFoundError: If sources or libraries are not there.
        RuntimeError: If the compiler is not there or fails; has what it says.
    """
    package = Path(require_openvino().__file__).parent
    libraries = libraries_in(package / 'libs')
    compile_library(
        [*SOURCES.glob('operators/*.cpp'), *SOURCES.glob('openvino/*.cpp')],
        out,
        flags=[*FLAGS, f'-I{package / "include"}'],
        link=[*map(str, libraries), f'-Wl,-rpath,{package / "libs"}'],
    )


def main() -> None:
    parser = ToolParser(__doc__)
    with parser.refusing(ImportError):
        default = library_path()
    parser.add_argument('--out', type=Path, default=default, help='default: %(default)s')
    args = parser.parse_args()
    with parser.refusing(FileNotFoundError, RuntimeError):
        build(args.out)
    print(f'{args.out}: run_onnx.py takes it by --library; mmlaplace finds it in {default}')


if __name__ == '__main__':
    main()
