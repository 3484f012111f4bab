"""Which state of the native sources a library is compiled from.

Kept free of imports of ours, as setup.py runs this file by itself.
"""

import hashlib
from pathlib import Path

SUFFIXES = ('.cpp', '.cu', '.cuh', '.h', '.inc')


def source_state(folder: Path) -> str:
    """16 hex digits of a hash over names and contents of the native sources in ``folder``."""
    content = hashlib.sha256()
    for path in sorted(path for path in folder.rglob('*') if path.suffix in SUFFIXES):
        content.update(path.relative_to(folder).as_posix().encode() + b'\0')
        content.update(path.read_bytes() + b'\0')
    return content.hexdigest()[:16]
