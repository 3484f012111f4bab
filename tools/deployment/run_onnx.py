"""Run a file of export.py on images, in ONNX Runtime or OpenVINO.

It prepares images as the toolbox's test pipeline does. It needs onnxruntime or openvino, numpy and
opencv-python, and Pillow where the pipeline resizes by it, but no PyTorch. On another machine it
needs image_pipeline.py and openvino_runtime.py of mmlaplace/deployment beside it. OpenVINO runs its
own files (.xml, with the weights in .bin beside it) and ONNX files with --runtime openvino. It
computes in the precision that it takes by default on the machine, or in that of --precision.

Prints the classes or the boxes of each image, in its own pixels. With --out there is a JSON file
for each image, with all scores or boxes, and the label map of a segmentor or the masks of a
detector as PNG files, each of the size of the image. The JSON file has the names of the masks.

Examples:
  python tools/deployment/run_onnx.py classifier.onnx cat.jpg
  python tools/deployment/run_onnx.py detector.onnx street.jpg --out predictions/
  python tools/deployment/run_onnx.py native.onnx cat.jpg --library onnxruntime_ops.so
  python tools/deployment/run_onnx.py classifier.xml cat.jpg --precision bf16
"""

import argparse
import json
import os
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Sequence

import numpy as np

# The module alone, as its package needs torch. A copy beside this file comes first.
sys.path.append(str(Path(__file__).resolve().parents[2] / 'mmlaplace/deployment'))  # in a clone
sys.path.append(str(Path(__file__).resolve().parents[3] / 'deployment'))  # in .mim of a wheel
import image_pipeline
import openvino_runtime


def positive(text: str) -> int:
    """A number of an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'must be an integer of at least 1, got {text}')
    return int(text)


def open_model(parser: argparse.ArgumentParser, args: argparse.Namespace):
    """A function that runs the file, and the JSON in its metadata.

    The function raises a RuntimeError or an error of the runtime where it cannot run the file.
    """
    if args.runtime == 'openvino':
        return open_in_openvino(parser, args)
    session = open_session(parser, args)
    names = [value.name for value in session.get_inputs()]

    def run(*inputs: np.ndarray) -> list:
        return session.run(None, dict(zip(names, inputs)))

    return run, session.get_modelmeta().custom_metadata_map.get('mmlaplace')


def check_files(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the command if the model or its library is not there."""
    if not args.model.is_file():
        parser.error(f'there is no file {args.model}; export.py makes it')
    if args.library and not args.library.is_file():
        tool = f'build_{args.runtime}_ops.py'
        parser.error(f'there is no library {args.library}; {tool} makes it')


def open_in_openvino(parser: argparse.ArgumentParser, args: argparse.Namespace):
    """As :func:`open_model`, by OpenVINO."""
    check_files(parser, args)
    try:
        core = openvino_runtime.core_with(args.library)
        model = openvino_runtime.read_model(args.model, core)
        compiled = openvino_runtime.compiled(core, model, args.precision)
    except (FileNotFoundError, ImportError, ValueError) as error:
        parser.error(str(error))
    return openvino_runtime.runner(compiled), openvino_runtime.facts_of(model)


def open_session(parser: argparse.ArgumentParser, args: argparse.Namespace):
    """The model in onnxruntime, with the compiled ops if they are given."""
    try:
        import onnxruntime
    except ImportError as error:
        parser.error(
            f'this needs onnxruntime ({error}); install it with pip install "mmlaplace[deploy]"'
        )
    check_files(parser, args)
    # It would take the CPU in the place of one that is missing.
    available = onnxruntime.get_available_providers()
    if missing := [name for name in args.providers if name not in available]:
        parser.error(
            f'--providers {" ".join(missing)}: this ONNX Runtime has {", ".join(available)}; take '
            'one of them, or install a build of ONNX Runtime with that provider'
        )
    options = onnxruntime.SessionOptions()
    try:
        if args.library:
            options.register_custom_ops_library(str(args.library.resolve()))
    except Exception as error:  # classes of onnxruntime's own
        parser.error(
            f'--library {args.library} cannot be loaded ({error}); build it again by '
            'build_onnxruntime_ops.py'
        )
    try:
        session = onnxruntime.InferenceSession(str(args.model), options, providers=args.providers)
    except Exception as error:
        if 'mmlaplace:' not in str(error):
            parser.error(f'{args.model} cannot be opened ({error}); export it again')
        parser.error(
            f'{args.model} was exported with --backend native: give --library, which '
            f'tools/deployment/build_onnxruntime_ops.py makes ({error})'
        )
    if missing := [name for name in args.providers if name not in session.get_providers()]:
        parser.error(
            f'--providers {" ".join(missing)} cannot start here, as ONNX Runtime says above; take '
            '--providers CPUExecutionProvider'
        )
    return session


def facts_of(parser: argparse.ArgumentParser, model: Path, written) -> dict:
    """The file's metadata, of the JSON in it."""
    try:
        about = image_pipeline.facts(written, model)
    except ValueError as error:
        parser.error(str(error))
    if about['batch'] not in (None, 1):
        parser.error(
            f'{model} was exported for {about["batch"]} images at a time; export it for one'
        )
    return about


def checked(run: Callable, args: argparse.Namespace) -> Callable:
    """A function that runs the model. It raises a ValueError where the runtime cannot run it."""

    def run_or_tell(images: np.ndarray, *more: np.ndarray) -> Sequence[np.ndarray]:
        try:
            return run(images, *more)
        except Exception as error:  # classes of the runtimes' own
            height, width = images.shape[2:]
            size = f'{height} x {width} pixels'
            if args.runtime == 'openvino':
                raise ValueError(
                    f'OpenVINO cannot run {args.model} for {size} ({error}); export it with '
                    f'--image-size {height} {width}'
                ) from error
            raise ValueError(
                f'ONNX Runtime cannot run {args.model} for {size} by {" ".join(args.providers)} '
                f'({error}); export it with --image-size {height} {width}, or try other --providers'
            ) from error

    return run_or_tell


def tell(found: Dict[str, np.ndarray], about: dict, top: int) -> None:
    """Print the predictions for an image, by the names of the classes."""
    name = partial(image_pipeline.name_of, about=about)
    if about['task'] == 'classification':
        for label in found['scores'].argsort()[::-1][:top]:
            print(f'  {name(label)}: {found["scores"][label]:.1%}')
    elif about['task'] == 'segmentation':
        for label, count in zip(*np.unique(found['labels'], return_counts=True)):
            print(f'  {name(label)}: {count / found["labels"].size:.1%} of the pixels')
    else:
        for label, score, box in zip(found['labels'][:top], found['scores'], found['boxes']):
            print(f'  {name(label)}: {score:.1%} at ' + ' '.join(f'{side:.1f}' for side in box))


def pictures_of(found: Dict[str, np.ndarray], about: dict, top: int) -> Dict[str, np.ndarray]:
    """Label map or masks to write, by the end of their names."""
    if about['task'] == 'segmentation':
        labels = found['labels']
        return {'': labels.astype(np.uint8 if labels.max() < 256 else np.uint16)}
    masks = found.get('masks', ())[:top]
    return {f'_{index}': 255 * mask for index, mask in enumerate(masks)}


def note(place: Path, force: bool, taken: set) -> None:
    """Note a file of results in ``taken``.

    Raises:
        ValueError: If it would replace an image or another result, or without --force a file.
    """
    if place.resolve() in taken:
        raise ValueError(f'{place} is already one of the images or results; name another --out')
    if place.exists() and not force:
        raise ValueError(f'{place} is there already; --force replaces it')
    taken.add(place.resolve())


def places_of(paths: List[Path]) -> List[Path]:
    """For each image the place of its results in ``--out``, without an ending.

    That is its name. If images share a name, as in a folder for each class, all keep their folders
    below the one that they share, and those of one folder also their endings.
    """
    names = Counter(path.stem for path in paths)
    if max(names.values()) == 1:
        return [Path(path.stem) for path in paths]
    whole = [path.resolve() for path in paths]
    shared = Path(os.path.commonpath([path.parent for path in whole]))
    relative = [path.relative_to(shared) for path in whole]
    plain = Counter(path.with_suffix('') for path in relative)
    return [path if plain[path.with_suffix('')] > 1 else path.with_suffix('') for path in relative]


def write(place: Path, pictures: dict, found: dict, args: argparse.Namespace, taken: set) -> None:
    """Write the predictions for an image, and remove masks of an earlier run.

    Args:
        place: Of :func:`places_of`.
        pictures: Those of :func:`pictures_of`.
        found: The predictions.
        args: The arguments.
        taken: Files that must stay.

    Raises:
        ValueError: As :func:`note`, for a mask.
    """
    import cv2

    folder = args.out / place.parent
    pictures = {f'{place.name}{name}.png': picture for name, picture in pictures.items()}
    numbers = {name: value.tolist() for name, value in found.items() if value.ndim < 3}
    if 'labels' in numbers and found['labels'].ndim == 2:
        del numbers['labels']  # of pixels, which are in the picture
    if 'masks' in found:
        numbers['masks'] = list(pictures)
        for name in pictures:
            note(folder / name, args.force, taken)
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        content = cv2.imencode('.png', picture)[1].tobytes()
        image_pipeline.write_whole(folder / name, content)
    if numbers:
        file = folder / f'{place.name}.json'
        earlier = masks_of(file)
        image_pipeline.write_whole(file, json.dumps(numbers).encode())
        for mask in earlier:
            if mask.resolve() not in taken:
                mask.unlink(missing_ok=True)


def masks_of(place: Path) -> List[Path]:
    """The masks that an earlier run wrote, by its JSON file."""
    own = re.compile(re.escape(place.stem) + r'_\d+\.png')
    try:
        names = json.loads(place.read_bytes())['masks']
        return [place.with_name(name) for name in names if own.fullmatch(name)]
    except (OSError, ValueError, TypeError, KeyError):  # none, or of another program
        return []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('model', type=Path, help='of export.py --format onnx or openvino')
    parser.add_argument('images', nargs='+', type=Path)
    parser.add_argument(
        '--image-size',
        nargs=2,
        type=positive,
        metavar=('H', 'W'),
        help='resize images to it, instead of as the test pipeline of the config',
    )
    parser.add_argument(
        '--top', type=positive, default=5, help='classes, boxes or masks; default: 5'
    )
    parser.add_argument(
        '--runtime',
        choices=('onnxruntime', 'openvino'),
        help='default: openvino for its own files (.xml), and else onnxruntime',
    )
    parser.add_argument(
        '--precision',
        choices=openvino_runtime.PRECISIONS,
        default='default',
        help="of OpenVINO; default: OpenVINO's own choice for the processor",
    )
    parser.add_argument('--providers', nargs='+', default=['CPUExecutionProvider'])
    parser.add_argument(
        '--library',
        type=Path,
        help='of build_onnxruntime_ops.py or build_openvino_ops.py, for files of --backend native',
    )
    parser.add_argument('--out', type=Path, help='folder for JSON files, label maps and masks')
    parser.add_argument('--force', action='store_true', help='replace results that are in --out')
    args = parser.parse_args()
    if args.runtime is None:
        args.runtime = 'openvino' if args.model.suffix == '.xml' else 'onnxruntime'
    if args.runtime == 'onnxruntime' and args.precision != 'default':
        parser.error('--precision is for --runtime openvino; ONNX Runtime takes that of the file')
    run, written = open_model(parser, args)
    run, about = checked(run, args), facts_of(parser, args.model, written)
    about = image_pipeline.of_size(about, args.image_size)
    taken, places = {path.resolve() for path in args.images}, places_of(args.images)
    if args.out:
        suffix = '.png' if about['task'] == 'segmentation' else '.json'
        try:
            for place in places:  # the file that each image has in any case
                note(args.out / f'{place}{suffix}', args.force, taken)
        except ValueError as error:
            parser.error(str(error))
    for path, place in zip(args.images, places):
        try:
            image = image_pipeline.read_image(path, about['color'])
        except OSError as error:
            parser.error(f'{path} cannot be read as an image ({error}); check the path')
        try:
            found, ready = image_pipeline.predict(run, image, about)
            print(f'{path}: {ready.size[0]} x {ready.size[1]}')
            tell(found, about, args.top)
            if args.out:
                write(place, pictures_of(found, about, args.top), found, args, taken)
        except OSError as error:
            parser.error(f'--out {args.out} cannot be written ({error}); name another folder')
        except ValueError as error:
            parser.error(f'{path}: {error}')


if __name__ == '__main__':
    main()
