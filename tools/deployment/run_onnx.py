"""Run an ONNX file of export.py on images. It needs onnxruntime, numpy and pillow, and no PyTorch.

Prints the classes or the boxes of each image. With --out, the label map of a segmentor or the masks
of a detector are saved as PNG files.

Examples:
  python tools/deployment/run_onnx.py classifier.onnx cat.jpg
  python tools/deployment/run_onnx.py detector.onnx street.jpg --image-size 800 1280 --out masks/
  python tools/deployment/run_onnx.py native.onnx cat.jpg --library onnxruntime_ops.so
"""

import argparse
import json
from pathlib import Path
from typing import Dict, Tuple

import numpy as np
from PIL import Image, ImageOps

SHORTEST = 224  # side that an image is resized to where the file takes any size


def target_size(about: dict, wanted, image: Image.Image) -> tuple:
    """Height and width that an image is resized to.

    Raises:
        ValueError: If the file does not take the size that is wanted; says which it takes.
    """
    if about['size'] is not None:
        if wanted is not None and list(wanted) != about['size']:
            raise ValueError(
                f'this file takes only images of {about["size"][0]} x {about["size"][1]}, got '
                f'--image-size {wanted[0]} {wanted[1]}; leave it out, or export with --dynamic'
            )
        return tuple(about['size'])
    if wanted is not None:
        return tuple(wanted)
    scale = SHORTEST / min(image.size)
    return tuple(round(side * scale) for side in image.size[::-1])


def read_image(path: Path) -> Image.Image:
    """An image as the toolboxes load it: upright, as RGB of 8 bits.

    Raises:
        OSError: If it cannot be read.
    """
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith('I'):  # 16 bits of grey, of which Pillow cuts all above 255
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    return image.convert('RGB')


def to_pixels(image: Image.Image, size: tuple, about: dict) -> np.ndarray:
    """Pixels ``(1, 3, H, W)``, padded right and below to the sides that the file takes."""
    pixels = np.asarray(image.resize(size[::-1]), np.float32)
    margins = [(0, -side % about['multiple']) for side in size]
    mean = np.array(about['mean'], np.float32)  # of which the file makes 0
    padded = np.pad(pixels - mean, (*margins, (0, 0))) + mean
    return padded.transpose(2, 0, 1)[None]


def paste(mask: np.ndarray, box: np.ndarray, size: tuple, threshold: float) -> np.ndarray:
    """The mask of a box as an image of 0 and 255."""
    left, top, right, bottom = (round(float(side)) for side in box)
    canvas = Image.new('L', size[::-1])
    if right > left and bottom > top:
        shape = Image.fromarray(mask).resize((right - left, bottom - top), Image.BILINEAR)
        canvas.paste(Image.fromarray(np.uint8(255 * (np.asarray(shape) >= threshold))), (left, top))
    return np.asarray(canvas)


def open_session(parser: argparse.ArgumentParser, args: argparse.Namespace):
    """The model in onnxruntime, with the compiled ops if they are given."""
    try:
        import onnxruntime
    except ImportError as error:
        parser.error(
            f'this needs onnxruntime ({error}); install it with pip install "mmlaplace[deploy]"'
        )
    if not args.model.is_file():
        parser.error(f'there is no file {args.model}; export.py makes it')
    if args.library and not args.library.is_file():
        parser.error(f'there is no library {args.library}; build_onnxruntime_ops.py makes it')
    options = onnxruntime.SessionOptions()
    try:
        if args.library:
            options.register_custom_ops_library(str(args.library))
        return onnxruntime.InferenceSession(str(args.model), options, providers=args.providers)
    except Exception as error:  # classes of onnxruntime's own
        if 'mmlaplace:' not in str(error):
            parser.error(f'{args.model} cannot be opened ({error}); export it again')
        parser.error(
            f'{args.model} was exported with --backend native: give --library, which '
            f'tools/deployment/build_onnxruntime_ops.py makes ({error})'
        )


def told(found: Dict[str, np.ndarray], about: dict, size: Tuple[int, int], top: int) -> dict:
    """Print the outputs for one image; the pictures to write, by the end of their name."""
    pictures = {}
    if about['task'] == 'classification':
        for label in found['scores'].argsort()[::-1][:top]:
            print(f'  class {label}: {found["scores"][label]:.1%}')
    elif about['task'] == 'segmentation':
        labels = found['labels'][: size[0], : size[1]]
        pictures[''] = labels.astype(np.uint8 if labels.max() < 256 else np.uint16)
        for label, count in zip(*np.unique(labels, return_counts=True)):
            print(f'  class {label}: {count / labels.size:.1%} of the pixels')
    else:
        for index in range(min(top, int((found['scores'] > 0).sum()))):
            box = found['boxes'][index]
            print(
                f'  class {found["labels"][index]}: {found["scores"][index]:.1%} at '
                + ' '.join(f'{side:.1f}' for side in box)
            )
            if 'masks' in found:
                threshold = about.get('mask_threshold', 0.5)
                pictures[f'_{index}'] = paste(found['masks'][index], box, size, threshold)
    return pictures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('model', type=Path, help='of export.py --format onnx')
    parser.add_argument('images', nargs='+', type=Path)
    parser.add_argument('--image-size', nargs=2, type=int, metavar=('H', 'W'))
    parser.add_argument('--top', type=int, default=5, help='classes or boxes; default: 5')
    parser.add_argument('--providers', nargs='+', default=['CPUExecutionProvider'])
    parser.add_argument(
        '--library', type=Path, help='of build_onnxruntime_ops.py, for files of --backend native'
    )
    parser.add_argument('--out', type=Path, help='folder for label maps and masks')
    args = parser.parse_args()
    session = open_session(parser, args)
    written = session.get_modelmeta().custom_metadata_map
    if 'mmlaplace' not in written:
        parser.error(f'{args.model} was not made by export.py')
    about = json.loads(written['mmlaplace'])
    if about['batch'] not in (None, 1):
        parser.error(
            f'{args.model} was exported for {about["batch"]} images at a time; export it for one'
        )
    taken = {path.resolve() for path in args.images}
    for path in args.images:
        try:
            image = read_image(path)
            size = target_size(about, args.image_size, image)
        except OSError as error:
            parser.error(f'{path} cannot be read as an image ({error}); check the path')
        except ValueError as error:
            parser.error(str(error))
        found = session.run(None, {'images': to_pixels(image, size, about)})
        found = {name: value[0] for name, value in zip(about['outputs'], found)}
        print(f'{path}: {size[0]} x {size[1]}')
        pictures = told(found, about, size, args.top)
        for name, picture in pictures.items() if args.out else ():
            place = args.out / f'{path.stem}{name}.png'
            if place.resolve() in taken:
                parser.error(f'{place} is already one of the images or results; name another --out')
            taken.add(place.resolve())
            args.out.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(place)


if __name__ == '__main__':
    main()
