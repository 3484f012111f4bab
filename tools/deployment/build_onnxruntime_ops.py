"""Compile mmlaplace's operators for ONNX Runtime, which export.py --backend native needs.

The tool needs a C++17 compiler, the sources of a clone, and the headers of ONNX Runtime. The Python
package of ONNX Runtime does not have the headers. They are in the archive of a release for Linux
(its folder 'include') and in packages of Linux distributions, such as libonnxruntime-dev of Debian.
--headers, or the variable ORT_INCLUDE, names the folder of onnxruntime_cxx_api.h. The headers of
1.21 were used; the functions that the library calls exist from 1.17 on. The library runs in the
version of the headers and in later ones. It does not need PyTorch. CXX and CXXFLAGS work as usual.

Examples:
  python tools/deployment/build_onnxruntime_ops.py --headers onnxruntime-linux-x64-1.21.0/include
  ORT_INCLUDE=/usr/include/onnxruntime python tools/deployment/build_onnxruntime_ops.py
"""

import os
from pathlib import Path
from typing import Optional

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.commands.compiling import compile_library
from mmlaplace.deployment.onnx_ops import LIBRARY

SOURCES = Path(__file__).resolve().parents[2] / 'ops'
HEADER = 'onnxruntime_cxx_api.h'
PLACES = ('/usr/include/onnxruntime', '/usr/local/include/onnxruntime', '/usr/local/include')


def find_headers(given: Optional[Path]) -> Path:
    """The folder of the headers.

    Raises:
        FileNotFoundError: If there is none; says where to get them.
    """
    wanted = given or os.environ.get('ORT_INCLUDE')
    places = [Path(wanted)] if wanted else [Path(place) for place in PLACES]
    for place in places:
        if (place / HEADER).is_file():
            return place
    raise FileNotFoundError(
        f'no {HEADER} in {", ".join(map(str, places))}; take the headers of ONNX Runtime from the '
        'archive of a release or from a package such as libonnxruntime-dev, and name their folder '
        'by --headers or ORT_INCLUDE'
    )


def build(headers: Path, out: Path) -> None:
    """Compile the library.

    Args:
        headers: Folder of the headers of ONNX Runtime.
        out: The library.

    Raises:
        FileNotFoundError: If the sources are not there.
        RuntimeError: If the compiler is not there or fails; has what it says.
    """
    compile_library(
        [*SOURCES.glob('operators/*.cpp'), *SOURCES.glob('onnxruntime/*.cpp')],
        out,
        flags=['-DMMLAPLACE_ONNXRUNTIME', f'-I{headers}'],
    )


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--headers', type=Path, help='of ONNX Runtime; default: $ORT_INCLUDE')
    parser.add_argument('--out', type=Path, default=LIBRARY, help='default: %(default)s')
    args = parser.parse_args()
    with parser.refusing(FileNotFoundError, RuntimeError):
        build(find_headers(args.headers), args.out)
    print(f'{args.out}: run_onnx.py takes it by --library; mmlaplace finds it in {LIBRARY}')


if __name__ == '__main__':
    main()
