"""Checkpoints from the web, downloaded once for all processes of a machine."""

import re
import sys
from hashlib import sha256
from os import PathLike
from os.path import expanduser
from pathlib import Path
from typing import Union
from urllib.parse import urlparse

import torch
from filelock import FileLock
from mmengine.fileio import get_file_backend

from ._plain_load import load_plain

DATE = r'(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])'


def check_scheme(checkpoint: Union[str, PathLike]) -> None:
    """Raise an error if mmengine has no backend for the beginning of an address."""
    try:
        get_file_backend(expanduser(checkpoint))
    except KeyError as error:
        raise ValueError(
            f'{checkpoint} begins with {error.args[0]!r}, which mmengine.fileio does not open; '
            'give a path, or an address that begins with https://, hf:// or timm://'
        ) from error


def download_once(address: str) -> Path:
    """The copy of an http(s) address in the cache of torch.hub, downloaded if it is not there.

    A name may end with 8 or more hexadecimal digits of the file's SHA-256, as in
    ``NAME-0123abcd.pth``. A date such as 20240101 is none. Then the copy is
    ``torch.hub.get_dir()/checkpoints/NAME``, and the digits are checked. Many files share a name
    such as ``epoch_12.pth``, so without such digits the copy's name begins with digits of the
    address's hash. If several processes ask at once, one downloads and the others wait. A file gets
    its name when it is whole.

    Raises:
        OSError: If it cannot be downloaded or written.
        RuntimeError: If its SHA-256 does not match.
        Exception: As :func:`load_plain`, if its name has no SHA-256 and it cannot be read.
    """
    name = Path(urlparse(address).path).name
    digits = re.search(rf'-(?!{DATE}\.)([0-9a-f]{{8,64}})\.[^.]+$', name)
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
