"""The pixels that an exported file takes, and its predictions in the coordinates of the image.

Both are as in the toolbox, by the config that was exported. The file's metadata say how:

  pipeline   the steps of the config's test pipeline that change the image, by their names and
             options in mmcv, mmpretrain, mmdet and mmseg
  color      how the image is read: 'color', 'grayscale', 'unchanged' with all channels of the file,
             or 'tifffile', by that package, which reads TIFFs of any number of bands
  classes    the names of the classes by their labels, or none
  palette    the colours of the classes, [red, green, blue] from 0 to 255, or none
  licence    of the repository of the backbone's authors: 'none' if it has no licence, and empty if
             that is not known
  pad        the multiple or the size to which the model's preprocessor pads, and the value

This file needs numpy and OpenCV, Pillow for pipelines that resize by it, and tifffile where it
reads. It needs neither torch nor mmlaplace: a copy beside run_onnx.py is enough on another machine.
"""

import json
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

Size = Tuple[int, int]  # height and width
Run = Callable[..., Tuple[np.ndarray, ...]]

READERS = {
    'color': 'IMREAD_COLOR',
    'grayscale': 'IMREAD_GRAYSCALE',
    'unchanged': 'IMREAD_UNCHANGED',
}
CV2 = dict(nearest='NEAREST', bilinear='LINEAR', bicubic='CUBIC', area='AREA', lanczos='LANCZOS4')
BORDERS = dict(constant='CONSTANT', edge='REPLICATE', reflect='REFLECT_101', symmetric='REFLECT')
PILLOW = ('nearest', 'bilinear', 'bicubic', 'box', 'lanczos', 'hamming')


class Prepared(NamedTuple):
    """An image as a file takes it."""

    pixels: np.ndarray  # (1, C, H, W) in fp32, 0 to 255: RGB, grey, or all channels of the file
    size: Size  # without the padding right and below
    scale: Tuple[float, float]  # of the resizing: of the width and of the height
    original: Size  # of the image


def read_image(path: Path, color: str = 'color') -> np.ndarray:
    """An image as the toolboxes load it: ``(H, W, C)``, three channels as BGR, or ``(H, W)``.

    In colour and in grey it is upright, with 8 bits. Otherwise it has the channels, the bits and
    the direction of the file.

    Raises:
        OSError: If it cannot be read.
    """
    if color == 'tifffile':
        return read_tiff(path)
    import cv2

    content = np.fromfile(path, np.uint8)
    try:
        image = cv2.imdecode(content, getattr(cv2, READERS[color])) if content.size else None
    except cv2.error as error:  # of an image with too many pixels, among others
        raise OSError(f'OpenCV cannot read it: {error}') from error
    if image is None:
        raise OSError('OpenCV does not know the format, or the file is cut off')
    return image


def read_tiff(path: Path) -> np.ndarray:
    """All bands of a TIFF.

    Raises:
        OSError: If it cannot be read.
    """
    try:
        import tifffile
    except ImportError as error:
        raise OSError(f'this needs tifffile ({error}); install it: pip install tifffile') from error
    try:
        return tifffile.imread(path)
    except (tifffile.TiffFileError, ValueError) as error:
        raise OSError(f'tifffile cannot read it: {error}') from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, which gets its name when it is whole."""
    partial = path.with_name(f'{os.getpid()}.partial')
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def resized(image: np.ndarray, size: Size, interpolation: str, backend: str) -> np.ndarray:
    """An image of another size, by OpenCV or Pillow.

    Raises:
        ValueError: For a size without pixels.
    """
    if min(size) < 1:
        raise ValueError(
            f'the test pipeline makes {size[0]} x {size[1]} pixels of an image of '
            f'{image.shape[0]} x {image.shape[1]}; take one that is less narrow'
        )
    if backend == 'pillow':
        from PIL import Image

        filters = Image.Resampling[interpolation.upper()]
        return np.asarray(Image.fromarray(image).resize(size[::-1], filters))
    import cv2

    return cv2.resize(image, size[::-1], interpolation=getattr(cv2, f'INTER_{CV2[interpolation]}'))


def resize(image: np.ndarray, scale: Size, keep_ratio: bool, **how: str) -> np.ndarray:
    """To a width and height, or as large as the longer and the shorter side allow."""
    height, width = image.shape[:2]
    if not keep_ratio:
        return resized(image, (scale[1], scale[0]), **how)
    factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
    return resize_by(image, (factor, factor), **how)


def resize_by(image: np.ndarray, factor: Tuple[float, float], **how: str) -> np.ndarray:
    """By a factor of the width and one of the height."""
    height, width = image.shape[:2]
    size = int(height * float(factor[1]) + 0.5), int(width * float(factor[0]) + 0.5)
    return resized(image, size, **how)


def resize_edge(image: np.ndarray, scale: int, edge: str, **how: str) -> np.ndarray:
    """One side to a length, and the other in proportion."""
    height, width = image.shape[:2]
    is_width = {
        'short': width < height,
        'long': width > height,
        'width': True,
        'height': False,
    }
    if is_width[edge]:
        return resized(image, (int(scale * height / width), scale), **how)
    return resized(image, (scale, int(scale * width / height)), **how)


def resize_to_multiple(image: np.ndarray, size_divisor: int, **how: str) -> np.ndarray:
    """Both sides to the next multiples."""
    height, width = (-(-side // size_divisor) * size_divisor for side in image.shape[:2])
    return resized(image, (height, width), **how)


def center_crop(image: np.ndarray, crop_size: Size, pad: Optional[dict]) -> np.ndarray:
    """The middle of an image, of a width and height; with ``pad`` a small image is padded first."""
    width, height = crop_size
    if pad is not None and (image.shape[0] < height or image.shape[1] < width):
        larger = max(width, image.shape[1]), max(height, image.shape[0])
        image = pad_image(image, **{**pad, 'size': larger, 'size_divisor': None, 'square': False})
    top = margin_before(image.shape[0], height)
    left = margin_before(image.shape[1], width)
    return image[top : top + height, left : left + width]


def margin_before(length: int, middle: float) -> int:
    """The pixels before the middle of a side."""
    return max(0, int(round((length - middle) / 2.0)))


def efficientnet_crop(
    image: np.ndarray, crop_size: int, crop_padding: int, **how: str
) -> np.ndarray:
    """The middle square, as large a share as the crop is of itself with its padding, resized."""
    height, width = image.shape[:2]
    side = crop_size / (crop_size + crop_padding) * min(height, width)
    top = margin_before(height, side)
    left = margin_before(width, side)
    bottom = min(int(top + side - 1), height - 1) + 1
    right = min(int(left + side - 1), width - 1) + 1
    return resized(image[top:bottom, left:right], (crop_size, crop_size), **how)


def pad_image(
    image: np.ndarray,
    size: Optional[Size],
    size_divisor: Optional[int],
    square: bool,
    value: Any,
    mode: str,
) -> np.ndarray:
    """Right and below, to a width and height, a square or the next multiples.

    Raises:
        ValueError: If the image is larger than the size, as in mmcv.
    """
    height, width = image.shape[:2]
    if square:
        height = width = max(height, width)
    if size is not None:
        width, height = size
        if height < image.shape[0] or width < image.shape[1]:
            raise ValueError(
                f'the test pipeline pads to {height} x {width}, and the image has '
                f'{image.shape[0]} x {image.shape[1]} at this step'
            )
    elif size_divisor:
        height, width = (-(-side // size_divisor) * size_divisor for side in (height, width))
    import cv2

    if isinstance(value, int) and image.ndim == 3:
        value = (value,) * image.shape[2]  # of a float, OpenCV takes 0 for the other channels
    margins = 0, height - image.shape[0], 0, width - image.shape[1]
    return cv2.copyMakeBorder(image, *margins, getattr(cv2, f'BORDER_{BORDERS[mode]}'), value=value)


STEPS: Dict[str, Callable] = {
    'ToFloat32': lambda image: image.astype(np.float32),
    'Resize': resize,
    'ResizeBy': resize_by,
    'ResizeEdge': resize_edge,
    'ResizeToMultiple': resize_to_multiple,
    'CenterCrop': center_crop,
    'EfficientNetCenterCrop': efficientnet_crop,
    'Pad': pad_image,
}
SCALES = ('Resize', 'ResizeBy', 'ResizeEdge')  # of which a detector's boxes are undone


def carried_out(image: np.ndarray, pipeline: List[dict]) -> Tuple[np.ndarray, Tuple[float, float]]:
    """An image after the steps, and the factors by which the last one resized width and height."""
    scale = 1.0, 1.0
    for step in pipeline:
        height, width = image.shape[:2]
        options = {name: value for name, value in step.items() if name != 'type'}
        image = STEPS[step['type']](image, **options)
        if step['type'] in SCALES:
            scale = image.shape[1] / width, image.shape[0] / height
    return image, scale


def facts(written: Optional[str], path: Path) -> dict:
    """The metadata of a file from the JSON in it, or a ValueError that says what to do."""
    about = json.loads(written or '{}')
    if 'pipeline' not in about:
        how = 'does not say how its images are prepared' if about else 'was not made by export.py'
        raise ValueError(f'{path} {how}; export it again')
    return about


def name_of(label: int, about: dict) -> str:
    """The name of a class, or its number where the file has no names."""
    names = about.get('classes') or ()
    return str(names[label]) if 0 <= label < len(names) else f'class {label}'


def of_size(about: dict, size: Optional[Size]) -> dict:
    """The metadata with a pipeline that resizes to a size if there is one, as it interpolates."""
    if size is None:
        return about
    how = dict(interpolation='bilinear', backend='cv2')
    for step in about['pipeline']:
        how.update({name: step[name] for name in how if name in step})
    resize = dict(type='Resize', scale=size[::-1], keep_ratio=False, **how)
    loading = [step for step in about['pipeline'] if step['type'] == 'ToFloat32']
    return dict(about, pipeline=[*loading, resize])


def turned(image: np.ndarray) -> np.ndarray:
    """An image ``(H, W, C)`` as a file takes it: of three channels, BGR becomes RGB."""
    return image[..., ::-1] if image.shape[2] == 3 else image


def prepare(image: np.ndarray, about: dict) -> Prepared:
    """An image as a file takes it.

    Args:
        image: As :func:`read_image` gives it.
        about: The file's metadata.

    Raises:
        ValueError: If the pipeline gives a size that the file does not take; says what to do.
    """
    original = image.shape[0], image.shape[1]
    image, scale = carried_out(image, about['pipeline'])
    pixels = turned(image[..., None] if image.ndim == 2 else image)
    size = pixels.shape[0], pixels.shape[1]
    pixels = padded(pixels.astype(np.float32), about, original)
    return Prepared(np.ascontiguousarray(pixels.transpose(2, 0, 1)[None]), size, scale, original)


def padded(pixels: np.ndarray, about: dict, original: Size) -> np.ndarray:
    """Pixels ``(H, W, C)``, padded right and below as the model's preprocessor pads."""
    pad, size = about['pad'], pixels.shape[:2]
    sides = [-(-side // pad['multiple']) * pad['multiple'] for side in size]
    if pad['size'] is not None:
        sides = [max(side, least) for side, least in zip(sides, pad['size'])]
    fixed = None if 'slide' in about else about['size']
    if about['task'] == 'detection' and fixed is not None:
        # mmdet pads the images of a batch to the largest of them.
        sides = [max(side, least) for side, least in zip(sides, fixed)]
    check_size(sides, about, original)
    out = np.empty((*sides, pixels.shape[2]), np.float32)
    out[...] = np.array(pad['value'], np.float32)
    out[: size[0], : size[1]] = pixels
    return out


def check_size(sides: List[int], about: dict, original: Size) -> None:
    """Raise a ValueError unless a file takes images of these sides."""
    maker = 'the test pipeline makes'
    if 'slide' in about:  # all windows have the same size
        sides = [min(pair) for pair in zip(sides, about['slide']['crop_size'])]
        maker = 'test_cfg cuts windows of'
    made = f'{maker} {sides[0]} x {sides[1]} pixels of an image of {original[0]} x {original[1]}'
    if about['size'] is not None:
        if list(sides) != list(about['size']):
            raise ValueError(
                f'{made}, and this file takes only {about["size"][0]} x {about["size"][1]}; take '
                'an image whose sides are in that proportion, or export with --dynamic or with '
                'another --image-size'
            )
        return
    multiple, least = about['multiple'], about.get('least', 1)
    if any(side % multiple for side in sides) or min(sides) < least:
        raise ValueError(
            f'{made}, and this file takes sides of at least {least}'
            + (f' that are multiples of {multiple}' if multiple > 1 else '')
            + '; export it for that --image-size, without --dynamic'
        )


def predict(run: Run, image: np.ndarray, about: dict) -> Tuple[Dict[str, np.ndarray], Prepared]:
    """The predictions of a file for an image, as the toolbox's inferencer gives them.

    Args:
        run: Runs the file: from ``images (1, C, H, W)``, and of a detector ``image_sizes (1, 2)``,
            to its outputs.
        image: As :func:`read_image` gives it.
        about: The file's metadata.

    Returns:
        The :class:`Prepared` image, and a dict before it: ``scores (classes,)`` of a classifier,
        ``labels (H, W)`` of a segmentor, ``boxes (n, 4)``, ``scores (n,)`` and ``labels (n,)`` of a
        detector, and its ``masks (n, H, W)`` of zeros and ones. H and W are of the image.
    """
    ready = prepare(image, about)
    if 'slide' in about:
        return dict(labels=by_windows(run, ready, about)), ready
    inputs = [ready.pixels]
    if about['task'] == 'detection':
        inputs.append(np.array([ready.size], np.float32))
    outputs = {name: value[0] for name, value in zip(about['outputs'], run(*inputs))}
    if about['task'] == 'segmentation':
        return dict(labels=label_map(outputs['logits'], ready, about)), ready
    if about['task'] == 'detection':
        return instances(outputs, ready, about), ready
    return outputs, ready


def label_map(logits: np.ndarray, ready: Prepared, about: dict) -> np.ndarray:
    """Labels of the image's pixels, of logits ``(classes, h, w)`` of the padded image.

    As in mmseg, logits are resized to the padded image, cut, and resized to the image.
    """
    align = about['align_corners']
    height, width = ready.size
    padded_size = ready.pixels.shape[2:]

    def whole(values: np.ndarray) -> np.ndarray:
        values = interpolated(values, padded_size, align)
        return interpolated(values[:height, :width], ready.original, align)

    if len(logits) == 1:
        probabilities = 1 / (1 + np.exp(-whole(logits[0])))
        return (probabilities > about['threshold']).astype(np.int64)
    # Class by class, as all of them at the size of a photograph would take gigabytes.
    best = whole(logits[0])
    labels = np.zeros(ready.original, np.int64)
    for label, values in enumerate(logits[1:], 1):
        values = whole(values)
        higher = values > best
        best[higher], labels[higher] = values[higher], label
    return labels


def by_windows(run: Run, ready: Prepared, about: dict) -> np.ndarray:
    """Labels of the image's pixels, of the mean logits of windows that overlap, as in mmseg."""
    window_height, window_width = about['slide']['crop_size']
    down, across = about['slide']['stride']
    height, width = ready.pixels.shape[2:]
    rows = max(height - window_height + down - 1, 0) // down + 1
    columns = max(width - window_width + across - 1, 0) // across + 1
    total: np.ndarray = np.zeros((0, 0, 0), np.float32)
    count = np.zeros((height, width), np.float32)
    for row in range(rows):
        for column in range(columns):
            bottom = min(row * down + window_height, height)
            right = min(column * across + window_width, width)
            top = max(bottom - window_height, 0)
            left = max(right - window_width, 0)
            place = np.s_[top:bottom, left:right]
            window = np.ascontiguousarray(ready.pixels[:, :, top:bottom, left:right])
            logits = run(window)[about['outputs'].index('logits')][0]
            if not count.any():
                total = np.zeros((len(logits), height, width), np.float32)
            size = bottom - top, right - left
            for one, values in zip(total, logits):
                one[place] += interpolated(values, size, about['align_corners'])
            count[place] += 1
    # The logits of the whole padded image, which need no resizing to its size.
    return label_map(total / count, ready, about)


def interpolated(values: np.ndarray, size: Size, align_corners: bool) -> np.ndarray:
    """A map ``(h, w)``, resized bilinearly, as ``torch.nn.functional.interpolate`` does."""
    if values.shape == tuple(size):
        return values
    top, bottom, down = taps(values.shape[0], size[0], align_corners)
    left, right, across = taps(values.shape[1], size[1], align_corners)
    rows = values[top] * (1 - down)[:, None] + values[bottom] * down[:, None]
    return rows[:, left] * (1 - across) + rows[:, right] * across


def taps(old: int, new: int, align_corners: bool) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each new place the two old ones beside it, and the weight of the second."""
    if align_corners:
        places = np.arange(new) * ((old - 1) / max(new - 1, 1))
    else:
        places = ((np.arange(new) + 0.5) * (old / new) - 0.5).clip(0)
    first = np.minimum(places.astype(np.int64), old - 1)
    return first, np.minimum(first + 1, old - 1), (places - first).astype(np.float32)


def instances(
    outputs: Dict[str, np.ndarray], ready: Prepared, about: dict
) -> Dict[str, np.ndarray]:
    """The detections of an image, without the empty places, in its pixels."""
    real = outputs['scores'] > 0
    detections = {name: value[real] for name, value in outputs.items()}
    detections['boxes'] = detections['boxes'] / np.tile(np.array(ready.scale, np.float32), 2)
    if 'masks' in detections:
        masks = [
            pasted(mask, box, ready.original) >= about['mask_threshold']
            for mask, box in zip(detections['masks'], detections['boxes'])
        ]
        detections['masks'] = np.array(masks, np.uint8).reshape(-1, *ready.original)
    return detections


def pasted(mask: np.ndarray, box: np.ndarray, size: Size) -> np.ndarray:
    """The mask ``(h, w)`` of a box in an image ``(H, W)``, resized bilinearly, and 0 around it."""
    left, top, right, bottom = box
    rows = np.maximum(0, 1 - np.abs(inside(mask.shape[0], size[0], top, bottom)))
    columns = np.maximum(0, 1 - np.abs(inside(mask.shape[1], size[1], left, right)))
    return rows @ mask @ columns.T


def inside(cells: int, pixels: int, start: float, stop: float) -> np.ndarray:
    """How far pixels are from the cells of a box, in cells, ``(pixels, cells)``."""
    places = (np.arange(pixels, dtype=np.float32) + 0.5 - start) / (stop - start) * cells - 0.5
    return places[:, None] - np.arange(cells, dtype=np.float32)
