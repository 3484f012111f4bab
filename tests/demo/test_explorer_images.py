"""The explorer takes images of anybody, and nothing else."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from explorer.images import MOST_PIXELS, Images, fitted, read_image
from PIL import Image


def test_uploads_are_images_of_a_bearable_size(tmp_path):
    (tmp_path / 'text.png').write_text('no image')
    with pytest.raises(ValueError, match=r'^text\.png cannot be read as an image \(.*; upload a '):
        read_image(tmp_path / 'text.png', 'text.png')
    whole = tmp_path / 'whole.jpg'
    Image.new('L', (300, 2000)).save(whole)
    assert max(read_image(whole, 'whole.jpg').size) == 1024
    (tmp_path / 'cut.jpg').write_bytes(whole.read_bytes()[:200])
    with pytest.raises(ValueError, match=r'^cut\.jpg cannot be read as an image'):
        read_image(tmp_path / 'cut.jpg', 'cut.jpg')
    (tmp_path / 'heavy.png').write_bytes(bytes(21 * 2**20))
    with pytest.raises(ValueError, match=r'^heavy\.png has 21 MB; make it smaller, at most 20 MB'):
        read_image(tmp_path / 'heavy.png', 'heavy.png')
    # A header is enough: the pixels are never read.
    side = int(MOST_PIXELS**0.5) + 1
    for width, told in ((side, f'has {side} x {side} pixels'), (2**20, 'has too many pixels')):
        header = b'BM' + bytes(8) + (54).to_bytes(4, 'little') + (40).to_bytes(4, 'little')
        header += width.to_bytes(4, 'little') + side.to_bytes(4, 'little') + b'\1\0\30\0'
        (tmp_path / 'huge.bmp').write_bytes(header + bytes(24))
        with pytest.raises(ValueError, match=told):
            read_image(tmp_path / 'huge.bmp', 'huge.bmp')


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


def test_uploads_may_come_while_others_look_at_the_list(tmp_path, monkeypatch):
    for number in range(40):
        Image.new('RGB', (8, 8), (number, 0, 0)).save(tmp_path / f'{number}.png')
    monkeypatch.setattr('explorer.images.read_image', lambda path, name: None)
    images, done = Images(), False

    def look():
        while not done:
            images.choices()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet in the middle of what they do
    try:
        with ThreadPoolExecutor(3) as pool:
            looking = pool.submit(look)
            files = [path for _ in range(25) for path in tmp_path.iterdir()]
            sent = [pool.submit(images.add, path, path.name) for path in files]
            try:
                keys = {one.result() for one in sent}
            finally:
                done = True
            looking.result()
    finally:
        sys.setswitchinterval(interval)
    assert len(keys) == 40


def test_a_file_that_runs_a_program_is_no_image(tmp_path, monkeypatch):
    """Pillow hands EPS to Ghostscript, whatever the name of the file."""
    ghostscript = tmp_path / 'gs'
    ghostscript.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran"\n')
    ghostscript.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    eps = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n'
    (tmp_path / 'page.png').write_bytes(eps)
    with pytest.raises(ValueError, match=r'^page\.png cannot be read as an image .*PNG, JPEG'):
        read_image(tmp_path / 'page.png', 'page.png')
    assert not (tmp_path / 'ran').exists()


def test_grey_of_sixteen_bits_keeps_its_levels(tmp_path):
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(257 * levels).save(tmp_path / 'deep.png')
    image = read_image(tmp_path / 'deep.png', 'deep.png')
    assert np.array_equal(np.asarray(image)[..., 1], levels)
