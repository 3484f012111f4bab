"""Checkpoints from the web, downloaded once for all processes of a machine."""

import re
import sys
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS
from hashlib import sha256
from os import PathLike
from os.path import expanduser
from pathlib import Path
from typing import Union
from urllib.parse import urlparse

import torch
from filelock import FileLock
from mmengine.fileio import get_file_backend
from mmengine.logging import print_log

from ._plain_load import load_plain


class DownloadError(OSError):
    """A file cannot be downloaded. The message has the reason and the fix."""


def check_scheme(checkpoint: Union[str, PathLike]) -> None:
    """Raise an error if mmengine has no backend for the beginning of an address."""
    try:
        get_file_backend(expanduser(checkpoint))
    except KeyError as error:
        raise ValueError(
            f'{checkpoint} begins with {error.args[0]!r}, which mmengine.fileio does not open; '
            'give a path, or an address that begins with https://, hf://, timm:// or mmlaplace://'
        ) from error


def download_once(address: str) -> Path:
    """The copy of an http(s) address in the cache of torch.hub, downloaded if it is not there.

    A name may end with 8 or more hexadecimal digits of the file's SHA-256, as in
    ``NAME-0123abcd.pth``. At least one is a letter, as 20240101 is a date, and 10000000 a number of
    steps. Then the copy is ``torch.hub.get_dir()/checkpoints/NAME``. The digits are checked
    whenever it is used, and a copy that they do not fit is downloaded again. Many files share a
    name such as ``epoch_12.pth``, so without such digits the copy's name begins with digits of the
    address's hash. If several processes ask at once, one downloads and the others wait. A file gets
    its name when it is whole. A whole copy is used where the cache cannot be written.

    Raises:
        DownloadError: If it cannot be downloaded or written, or is a web page.
        RuntimeError: If its SHA-256 does not match.
        Exception: As :func:`load_plain`, if its name has no SHA-256 and it cannot be read.
    """
    name = Path(urlparse(address).path).name
    found = re.search(r'-(?=\d*[a-f])([0-9a-f]{8,64})\.[^.]+$', name)
    digits = found[1] if found else ''
    if not digits:
        name = f'{sha256(address.encode()).hexdigest()[:16]}_{name}'
    path = Path(torch.hub.get_dir(), 'checkpoints', name)
    if _is_whole(path, digits):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f'{path}.lock'):
            if not _is_whole(path, digits):
                _download(address, path, digits)
    except OSError as error:
        raise DownloadError(_reason_and_fix(error, path.parent)) from error
    return path


def _reason_and_fix(error: OSError, folder: Path) -> str:
    if isinstance(error, DownloadError):
        return str(error)
    if error.errno in (EACCES, EPERM, EROFS):
        return (
            f'{folder} may not be written, and has no whole copy; set TORCH_HOME to a folder of '
            'yours'
        )
    if error.errno in (ENOSPC, EDQUOT):
        return f'the disk of {folder} is full; free space, or set TORCH_HOME to another folder'
    return (
        f'{error}; check the address and the network, or download the file on another machine, and '
        'give its path'
    )


def _download(address: str, path: Path, digits: str) -> None:
    part = Path(f'{path}.part')
    print_log(f'Downloading {address} to {path}', 'current')
    shown = sys.stderr.isatty() or 'ipykernel' in sys.modules  # no bar in the log of a job
    try:
        torch.hub.download_url_to_file(address, str(part), digits or None, progress=shown)
        if _is_page(part):
            raise DownloadError(
                'it answers with a web page, and not with a file; open the address in a browser, '
                'save the file, and give its path'
            )
        if not digits:
            load_plain(part, 'cpu')  # a connection that ends early is no error by itself
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _is_page(path: Path) -> bool:
    """Whether a file begins as a page of HTML does, and no checkpoint."""
    with open(path, 'rb') as file:
        return file.read(1024).lstrip(b'\xef\xbb\xbf \t\r\n').startswith(b'<')


def _is_whole(path: Path, digits: str) -> bool:
    """Whether a file is there, and has a SHA-256 that begins with these digits."""
    if not path.is_file():
        return False
    content = sha256()
    with open(path, 'rb') as file:
        while digits and (chunk := file.read(2**24)):
            content.update(chunk)
    return not digits or content.hexdigest().startswith(digits)
