"""Which native sources a library is compiled from, and in which state.

It imports nothing of ours, because setup.py runs this file by itself.
"""

import hashlib
from pathlib import Path
from typing import List

SUFFIXES = ('.cpp', '.cu', '.cuh', '.h')
OTHERS = ('benchmarks', 'onnxruntime')  # folders


def library_sources(folder: Path) -> List[Path]:
    """The native sources in ``folder`` that the library is compiled from, sorted.

    Those in :data:`OTHERS` are not among them: a benchmark compiles its own when it runs, and
    ``tools/deployment/build_onnxruntime_ops.py`` those for ONNX Runtime.
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
