"""Fashion-MNIST: 70,000 grey images of clothes, 28 x 28 pixels, in ten classes.

The data set is the one of this room that needs a download. Source: arXiv 1708.07747, MIT licence.
"""

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import Dict, Optional, Tuple

import numpy as np

PACKAGE = Path('/usr/share/datasets/fashion-mnist')  # where Debian's package has the files
TEST_IMAGES = 't10k-images-idx3-ubyte'
# SHA-256 of the unpacked files. The packed ones differ from place to place.
DIGESTS: Dict[str, str] = {
    'train-images-idx3-ubyte': 'c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888',
    'train-labels-idx1-ubyte': 'bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9',
    't10k-images-idx3-ubyte': '5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b',
    't10k-labels-idx1-ubyte': '0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34',
}


def read_file(folder: Path, name: str) -> bytes:
    """One of the four files, unpacked if it ends with ``.gz``.

    Raises:
        FileNotFoundError: If the folder does not have it. The message names ways to get it.
        ValueError: If it is not the file of Fashion-MNIST, or is cut off.
    """
    plain, packed = folder / name, folder / f'{name}.gz'
    if not plain.is_file() and not packed.is_file():
        raise FileNotFoundError(
            f'{folder} has no {name} of Fashion-MNIST; run apt-get install dataset-fashion-mnist, '
            'or python -c "from mmpretrain.datasets import FashionMNIST as F; '
            "F('data/fashion')\" and add --fashion-files data/fashion"
        )
    try:
        content = plain.read_bytes() if plain.is_file() else gzip.decompress(packed.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f'{packed} cannot be unpacked ({error}); get it again') from error
    found = hashlib.sha256(content).hexdigest()
    if found != DIGESTS[name]:
        raise ValueError(
            f'{folder / name} has the SHA-256 {found[:12]}…, but that of Fashion-MNIST is '
            f'{DIGESTS[name][:12]}…; get it again'
        )
    return content


def array_of(content: bytes) -> np.ndarray:
    """The array in a file of the IDX format: images ``(n, 28, 28)``, or labels ``(n,)``."""
    axes = content[3]
    shape = np.frombuffer(content, '>i4', axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def read_part(folder: Path, part: str) -> Tuple[np.ndarray, np.ndarray]:
    """Images ``(n, 28, 28)`` and labels ``(n,)`` of ``'train'`` or ``'t10k'``, from 0 to 255."""
    images, labels = (
        array_of((folder / f'{part}-{kind}-ubyte').read_bytes())
        for kind in ('images-idx3', 'labels-idx1')
    )
    return images, labels


def make_fashion(out: Path, seed: int, source: Optional[Path] = None) -> None:
    """Copy the four files, unpacked, as mmpretrain's ``FashionMNIST`` reads them.

    Args:
        out: Folder of the data set.
        seed: It has no effect, as nothing is drawn.
        source: Folder with the files, packed or unpacked. Default: that of Debian's package.

    Raises:
        FileNotFoundError, ValueError: As in :func:`read_file`.
    """
    for name in DIGESTS:
        (out / name).write_bytes(read_file(source or PACKAGE, name))
