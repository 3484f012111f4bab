"""The explorer takes images of anybody, and nothing else."""

import os

import numpy as np
import pytest
from explorer.images import MOST_PIXELS, Images, fitted, read_image
from PIL import Image


def header(width, height) -> bytes:
    """Of a bitmap, which is enough, as pixels of too large ones are never read."""
    sizes = width.to_bytes(4, 'little') + height.to_bytes(4, 'little')
    return b'BM' + bytes(8) + b'\x36\0\0\0\x28\0\0\0' + sizes + b'\1\0\30\0' + bytes(24)


SIDE = int(MOST_PIXELS**0.5) + 1
# Pillow hands EPS to Ghostscript, whatever the name of the file.
EPS = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n'


@pytest.mark.parametrize(
    ('content', 'told'),
    [
        (b'no image', 'cannot be read as an image'),
        (bytes(21 * 2**20), 'has 21 MB; make it smaller, at most 20 MB'),
        (header(SIDE, SIDE), f'has {SIDE} x {SIDE} pixels'),
        (header(2**20, SIDE), 'has too many pixels'),
        (EPS, 'cannot be read as an image'),
    ],
    ids=['text', 'heavy', 'large', 'huge', 'program'],
)
def test_an_upload_that_is_no_image_or_too_large_is_refused(content, told, tmp_path, monkeypatch):
    ghostscript = tmp_path / 'gs'
    ghostscript.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran"\n')
    ghostscript.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    (tmp_path / 'a.png').write_bytes(content)
    with pytest.raises(ValueError, match=rf'^a\.png {told}'):
        read_image(tmp_path / 'a.png', 'a.png')
    assert not (tmp_path / 'ran').exists()


def test_images_keep_their_shape_and_are_known_by_their_content(tmp_path):
    images = Images()
    for number in range(34):
        Image.new('RGB', (60, 40), (number, 0, 0)).save(tmp_path / f'{number}.png')
        key = images.add(tmp_path / f'{number}.png', f'{number}.png')
    assert key == images.add(tmp_path / '33.png', 'again.png')
    assert len(images.uploads) == 32
    assert ('again.png (uploaded)', key) in images.choices()
    assert fitted(images.get(key), 224) == (160, 224)
    assert fitted(Image.new('RGB', (1000, 10)), 224) == (32, 224)
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(257 * levels).save(tmp_path / 'deep.png')
    deep = read_image(tmp_path / 'deep.png', 'deep.png')
    assert np.array_equal(np.asarray(deep)[..., 1], levels)
