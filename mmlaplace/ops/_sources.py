"""The native sources that a library is compiled from, and a hash of their contents.

It imports nothing of mmlaplace, because setup.py runs this file by itself.
"""

import hashlib
from pathlib import Path
from typing import List

SUFFIXES = ('.cpp', '.cu', '.cuh', '.h')
OTHERS = ('benchmarks', 'onnxruntime', 'openvino', 'operators')  # folders


def library_sources(folder: Path) -> List[Path]:
    """The native sources in ``folder`` that the library is compiled from, sorted.

    Sources in :data:`OTHERS` are left out. A benchmark compiles its own sources when it runs.
    ``build_onnxruntime_ops.py`` and ``build_openvino_ops.py`` of ``tools/deployment`` compile those
    for runtimes.
    """
    return sorted(
        path
        for path in folder.rglob('*')
        if path.suffix in SUFFIXES and path.relative_to(folder).parts[0] not in OTHERS
    )


def source_state(folder: Path) -> str:
    """16 hex digits of a hash over names and contents of :func:`library_sources`."""
    content = hashlib.sha256()
    for path in library_sources(folder):
        content.update(path.relative_to(folder).as_posix().encode() + b'\0')
        content.update(path.read_bytes() + b'\0')
    return content.hexdigest()[:16]
