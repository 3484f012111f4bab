"""Photographs on the surfaces of rendered rooms, with three targets for each pixel."""

from pathlib import Path
from typing import List, Tuple

import numpy as np
from PIL import Image
from rich.progress import track

from .images import save_image

SIDE = 128
COUNTS = {'training': 1200, 'validation': 200}
# Photographs of scikit-image that need no download, half of them grey. The last three are for
# validation.
PHOTOS = (
    'brick',
    'camera',
    'coffee',
    'coins',
    'grass',
    'gravel',
    'hubble_deep_field',
    'immunohistochemistry',
    'moon',
    'page',
    'retina',
    'text',
    'astronaut',
    'cat',
    'rocket',
)
HELD_OUT = 3
FAR, NEAR = 8.0, 1.0  # depths, in heights of the camera
SEGMENTS = 64  # superpixels of an image


def photographs(split: str) -> List[np.ndarray]:
    """The photographs of a split, each ``(h, w, 3)`` in [0, 1]."""
    from skimage import data

    names = PHOTOS[:-HELD_OUT] if split == 'training' else PHOTOS[-HELD_OUT:]
    images = (Image.fromarray(getattr(data, name)()).convert('RGB') for name in names)
    return [np.asarray(image) / 255 for image in images]


def look_up(photo: np.ndarray, x: np.ndarray, y: np.ndarray, scale: float) -> np.ndarray:
    """The colours ``(..., 3)`` of a photograph that is mirrored without end, at places in space."""
    height, width = photo.shape[:2]
    row, column = ((np.abs(v) * scale * 256).astype(int) for v in (y, x))
    row, column = row % (2 * height), column % (2 * width)
    return photo[np.minimum(row, 2 * height - 1 - row), np.minimum(column, 2 * width - 1 - column)]


def render(
    photos: List[np.ndarray], rng: np.random.Generator, side: int = SIDE
) -> Tuple[np.ndarray, np.ndarray]:
    """A floor, a wall and some balls, seen from a height of 1.

    Returns:
        The image ``(side, side, 3)`` in [0, 1], and the depths ``(side, side)``.
    """
    line = (np.arange(side) + 0.5) / side * 2 - 1
    x, y = np.meshgrid(line, line + rng.uniform(-0.3, 0.3))  # rays (x, y, 1), and y looks down
    texture = [photos[i] for i in rng.integers(len(photos), size=7)]
    scale, wall, shift = rng.uniform(0.4, 0.8), rng.uniform(4, FAR), rng.uniform(2, 6)
    depth = np.full_like(x, wall)
    image = look_up(texture[0], x * wall + shift, y * wall + shift, scale)
    on_floor = (y > 0) & (1 / np.maximum(y, 1e-6) < wall)
    depth[on_floor] = 1 / y[on_floor]
    image[on_floor] = look_up(texture[1], x * depth + shift, depth, scale)[on_floor]
    light = rng.normal(size=3) + (0, -2, -2)
    light /= np.linalg.norm(light)
    for photo in texture[2 : 2 + rng.integers(2, 6)]:
        radius, far = rng.uniform(0.2, 0.6), rng.uniform(1.8, wall - 0.6)
        middle = np.array([rng.uniform(-0.8, 0.8) * far, 1 - radius, far])
        square = x**2 + y**2 + 1
        along = middle[0] * x + middle[1] * y + middle[2]
        root = along**2 - square * (middle @ middle - radius**2)
        ahead = (along - np.sqrt(np.maximum(root, 0))) / square
        seen = (root > 0) & (ahead > NEAR) & (ahead < depth)
        normal = (np.stack([x, y, np.ones_like(x)], -1) * ahead[..., None] - middle) / radius
        shade = 0.35 + 0.65 * np.maximum(normal @ light, 0)
        colour = look_up(photo, normal[..., 0] * radius, normal[..., 1] * radius, 2 * scale)
        image[seen] = (colour * shade[..., None])[seen]
        depth[seen] = ahead[seen]
    return image, depth


def targets(image: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Nearness, edges and superpixels of an image, ``(h, w, 3)`` in [0, 1].

    Nearness is the inverse depth. Edges are Sobel's of the grey image. Superpixels are SLIC's, each
    with the mean of its grey pixels.
    """
    from skimage import color, filters, segmentation

    gray = color.rgb2gray(image)
    labels = segmentation.slic(image, SEGMENTS, start_label=0)
    sizes = np.maximum(np.bincount(labels.ravel()), 1)
    means = np.bincount(labels.ravel(), gray.ravel()) / sizes
    return np.stack([NEAR / depth, 2 * filters.sobel(gray), means[labels]], -1).clip(0, 1)


def make_rendered(out: Path, seed: int) -> None:
    """Write ``{images,targets}/{training,validation}``; a target has one channel for each kind."""
    for part, (split, count) in enumerate(COUNTS.items()):
        photos, rng = photographs(split), np.random.default_rng([seed, 5, part])
        for number in track(range(count), f'rendered {split}'):
            image, depth = render(photos, rng)
            for kind, content in (('images', image), ('targets', targets(image, depth))):
                save_image(content, out / kind / split / f'{number:06d}.png')
