"""The images of the explorer: photographs of scikit-image, and uploads, which are checked."""

import hashlib
import warnings
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import List, Tuple

from PIL import Image

from mmlaplace.analysis.recording import PHOTOS, photograph, rgb

MOST_BYTES, MOST_PIXELS = 20 * 2**20, 50_000_000
MOST_UPLOADS = 32
LONGEST = 1024  # pixels of an upload that are kept
STEP = 32  # sides are multiples of the stride of the last stage
# Pillow reads more, such as EPS, which it hands to Ghostscript.
FORMATS = ('PNG', 'JPEG', 'WEBP', 'GIF', 'BMP', 'TIFF')


def read_image(path: Path, name: str) -> Image.Image:
    """An image from a file that anybody may have sent.

    Raises:
        ValueError: If it is no image, is cut off, or is too large; says what to do.
    """
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(
            f'{name} has {size / 2**20:.0f} MB; make it smaller, at most {MOST_BYTES >> 20} MB'
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', Image.DecompressionBombWarning)  # checked below
            image = Image.open(path, formats=FORMATS)
        width, height = image.size
        if width * height <= MOST_PIXELS:
            image = rgb(image)
    except Image.DecompressionBombError:
        raise ValueError(
            f'{name} has too many pixels; make it smaller, at most {MOST_PIXELS:,} pixels'
        ) from None
    except Exception as error:  # Pillow's decoders raise errors of many kinds for a broken file
        raise ValueError(
            f'{name} cannot be read as an image ({type(error).__name__}); upload a whole PNG, '
            'JPEG, WebP, GIF, BMP or TIFF'
        ) from error
    if width * height > MOST_PIXELS:
        raise ValueError(
            f'{name} has {width} x {height} pixels; make it smaller, at most {MOST_PIXELS:,} pixels'
        )
    image.thumbnail((LONGEST, LONGEST))
    return image


def fitted(image: Image.Image, longest: int) -> Tuple[int, int]:
    """Height and width for the model: the longer side is given, both are multiples of 32."""
    scale = longest / max(image.size)
    width, height = (max(STEP, round(side * scale / STEP) * STEP) for side in image.size)
    return height, width


class Images:
    """Images by a short key, which stands in the address. The oldest uploads are let go."""

    def __init__(self) -> None:
        self.uploads: OrderedDict[str, Tuple[str, Image.Image]] = OrderedDict()
        self.photos = {}
        self.lock = Lock()  # several people may send at once

    def add(self, path: Path, name: str) -> str:
        """Keep an upload; its key, which is the same for the same file.

        Raises:
            ValueError: As :func:`read_image`.
        """
        image = read_image(path, name)
        key = f'upload-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}'
        with self.lock:
            self.uploads[key] = (name, image)
            self.uploads.move_to_end(key)
            while len(self.uploads) > MOST_UPLOADS:
                self.uploads.popitem(last=False)
        return key

    def get(self, key: str) -> Image.Image:
        """The image of a key.

        Raises:
            ValueError: If there is none, or scikit-image, which has the photographs, is missing.
        """
        if key in self.uploads:
            return self.uploads[key][1]
        if key not in PHOTOS:
            raise ValueError(
                f'this server has no image {key!r}; it forgets uploads when it ends, so upload the '
                f'image again, or choose one of {", ".join(PHOTOS)}'
            )
        if key not in self.photos:
            try:
                self.photos[key] = photograph(key)
            except ImportError as error:
                raise ValueError(
                    f'the photograph {key!r} needs scikit-image; upload an image, or install it '
                    'with pip install "mmlaplace[demo]"'
                ) from error
        return self.photos[key]

    def choices(self) -> List[Tuple[str, str]]:
        """Name and key of each image."""
        with self.lock:
            uploads = list(self.uploads.items())
        return [(name, name) for name in PHOTOS] + [
            (f'{name} (uploaded)', key) for key, (name, _) in uploads
        ]
