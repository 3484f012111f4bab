"""Checkpoints from the web, downloaded once for all processes of a machine."""

import re
import sys
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlparse

import torch
from filelock import FileLock

from ._plain_load import load_plain


def download_once(address: str) -> Path:
    """The copy of an http(s) address in the cache of torch.hub, downloaded if it is not there.

    A name may end with 8 or more hexadecimal digits of the file's SHA-256, as in
    ``NAME-0123abcd.pth``. Then the copy is ``torch.hub.get_dir()/checkpoints/NAME``, and the digits
    are checked. Many files share a name such as ``epoch_12.pth``, so without such digits the copy's
    name begins with digits of the address's hash. If several processes ask at once, one downloads
    and the others wait. A file gets its name when it is whole.

    Raises:
        OSError: If it cannot be downloaded or written.
        RuntimeError: If its SHA-256 does not match.
        Exception: As :func:`load_plain`, if its name has no SHA-256 and it cannot be read.
    """
    name = Path(urlparse(address).path).name
    digits = re.search(r'-([0-9a-f]{8,64})\.[^.]+$', name)
    if digits is None:
        name = f'{sha256(address.encode()).hexdigest()[:16]}_{name}'
    path = Path(torch.hub.get_dir(), 'checkpoints', name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f'{path}.lock'):
        if not path.is_file():
            part = Path(f'{path}.part')
            try:
                torch.hub.download_url_to_file(
                    address, str(part), digits and digits[1], progress=sys.stderr.isatty()
                )
                if digits is None:
                    load_plain(part, 'cpu')  # a connection that ends early is no error by itself
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
    return path
