"""Predict class, boxes and masks, or segmentation of an image or of a folder of images.

An image is a file, or an address that begins with http://, https:// or file://. The config's
toolbox predicts and draws, by its own inferencer. For each image there are a picture in
OUT_DIR/vis and a JSON file in OUT_DIR/preds:

  classification  label, score and class, and the scores of all classes
  detection       boxes x1, y1, x2, y2 in pixels, labels, classes and scores; masks as COCO's RLE
  segmentation    share of each class, and beside it the label of each pixel as a PNG

If a file in a folder is no image, it is named, and the others still run. The exit status is then 1.

Examples:
  python demo/image_demo.py photo.jpg CONFIG CHECKPOINT
  python demo/image_demo.py photos CONFIG CHECKPOINT --out-dir outputs --batch-size 8
  python demo/image_demo.py https://example.org/photo.jpg CONFIG CHECKPOINT --pred-score-thr 0.5
"""

import os
import re
import sys
from collections import Counter
from functools import partial
from hashlib import sha256
from http.client import HTTPException
from importlib import import_module
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import List, NamedTuple, Tuple, Union
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

import numpy as np
import torch
from mmengine.config import Config, DictAction
from PIL import Image
from rich.progress import Progress

from mmlaplace.commands.command_line import (
    ToolParser,
    check_backbone,
    load_or_exit,
    positive,
    write_json,
)
from mmlaplace.cpu import optimize
from mmlaplace.deployment.image_pipeline import read_image
from mmlaplace.deployment.inferencers import inferencer_of_classifier, names_and_colours
from mmlaplace.deployment.toolbox_pipeline import test_pipeline_of
from mmlaplace.toolboxes import PACKAGES, require_toolbox
from mmlaplace.writing import whole_file, write_whole

# What mmdet takes from a folder.
FORMATS = ('BMP', 'JPEG', 'JPEG2000', 'PNG', 'PPM', 'TIFF', 'WEBP')  # EPS starts Ghostscript
SUFFIXES = {'.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif', '.tiff', '.webp'}
# Options of one toolbox alone, with their defaults.
OPTIONS = {
    'mmpretrain': dict(resize=None),
    'mmdet': dict(pred_score_thr=0.3, palette=None),
    'mmseg': dict(opacity=0.5, with_labels=False),
}
LIMITS = dict(wait_time=(0, inf), pred_score_thr=(0, 1), opacity=(0, 1))
MANY = 8  # class names on the terminal
ADDRESSES = ('http://', 'https://', 'file://')
PATIENCE = 30  # seconds without an answer from an address
MOST = 200  # bytes of a result's name, of the 255 that it may have with its ending


class Photo(NamedTuple):
    """An image to predict for: what the user calls it, its results' name, and where it is."""

    title: str
    name: str
    path: Path


def parse_args():
    parser = ToolParser(__doc__)
    parser.add_argument('inputs', help='an image, a folder of images, or the address of an image')
    parser.add_trained_model('classifier, detector or segmentor')
    parser.add_argument('--out-dir', type=Path, default=Path('outputs'), help='default: outputs')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument(
        '--optimize',
        action='store_true',
        help='pack the weights for a CPU (mmlaplace.cpu.optimize)',
    )
    parser.add_argument('--batch-size', type=positive, default=1, help='images at once; default: 1')
    parser.add_argument('--show', action='store_true', help='also in a window')
    parser.add_argument(
        '--wait-time', type=float, default=0, help='seconds a window stays; 0: until a key'
    )
    parser.add_argument('--no-save-vis', action='store_true', help='write no pictures')
    parser.add_argument('--no-save-pred', action='store_true', help='write no JSON')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={})
    group = parser.add_argument_group('classification')
    group.add_argument('--resize', type=positive, help='shorter side of the picture, in pixels')
    group = parser.add_argument_group('detection')
    group.add_argument('--pred-score-thr', type=float, help='of what is drawn; default: 0.3')
    group.add_argument('--palette', choices=('coco', 'voc', 'citys', 'random'), help='colours')
    group = parser.add_argument_group('segmentation')
    group.add_argument('--opacity', type=float, help='of the colours, 0 to 1; default: 0.5')
    group.add_argument(
        '--with-labels', action='store_const', const=True, help='write the names of the classes'
    )
    args = parser.parse_args()
    check_args(parser, args)
    return args


def check_args(parser: ToolParser, args) -> None:
    """End with a sentence if the arguments cannot work, and read the config."""
    remote = args.inputs.startswith(ADDRESSES)
    for path, kind in ((args.config, 'config'), (args.inputs, 'image or folder')):
        if not (remote and path == args.inputs) and not os.path.exists(path):
            parser.error(f'there is no {kind} {path}; check the path')
    if args.optimize and args.device != 'cpu':
        parser.error(f'--optimize is for a CPU, and --device is {args.device}; add --device cpu')
    for name, (low, high) in LIMITS.items():
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            parser.error(f'--{name.replace("_", "-")} {value} is outside of {low} to {high}')
    try:
        args.cfg = Config.fromfile(args.config)
        args.cfg.merge_from_dict(args.cfg_options)
    except Exception as error:  # a config runs code, which may raise anything
        parser.error(
            f'{args.config} cannot be read as a config ({error or type(error).__name__}); images '
            'come first, then the config, then the checkpoint'
        )
    scope = args.cfg.get('default_scope')
    if scope not in PACKAGES or 'test_dataloader' not in args.cfg:
        parser.error(
            f'{args.config} is not a config of a classifier, detector or segmentor: its '
            f'default_scope is {scope!r}, and it has '
            f'{"a" if "test_dataloader" in args.cfg else "no"} test_dataloader'
        )
    for package, defaults in OPTIONS.items():
        for name, default in defaults.items():
            if getattr(args, name) is None:
                setattr(args, name, default)
            elif package != scope:
                option = '--' + name.replace('_', '-')
                parser.error(f'{option} is for configs of {package}, and this is one of {scope}')
    args.paths = [] if remote else [Path(args.inputs)]
    if args.paths and args.paths[0].is_dir():
        args.paths = sorted(p for p in args.paths[0].iterdir() if p.suffix.lower() in SUFFIXES)
        if not args.paths:
            parser.error(f'{args.inputs} has no images; it takes {" ".join(sorted(SUFFIXES))}')
    results = {(args.out_dir / kind).resolve() for kind in ('vis', 'preds')}
    if any(path.parent.resolve() in results for path in args.paths):
        parser.error(
            f'--out-dir {args.out_dir}: results there would replace images of {args.inputs}; name '
            'another folder'
        )
    if args.show and not has_screen():
        parser.error('--show needs a screen, and there is none; see the results in --out-dir')


def has_screen() -> bool:
    """Whether matplotlib can open a window."""
    from matplotlib import pyplot as plt

    try:
        plt.close(plt.figure())
    except Exception:  # a backend that was asked for by name; each has errors of its own
        return False
    return plt.get_backend().lower() != 'agg'


def end(reason) -> None:
    sys.exit(f'{Path(sys.argv[0]).name}: error: {reason}')


def build_inferencer(args):
    """The toolbox's own inferencer, with weights that were loaded strictly."""
    cfg, scope = args.cfg, args.cfg.default_scope
    try:
        require_toolbox(scope)
    except ImportError as error:
        end(error)
    import_module(f'{scope}.utils').register_all_modules()
    check_backbone(cfg, args.config)
    load = partial(load_or_exit, checkpoint=args.checkpoint, min_matched=1)
    if scope == 'mmpretrain':
        from mmpretrain import get_model

        model = get_model(cfg, pretrained=False)
        load(model)
        classes = names_and_colours(cfg, args.checkpoint).get('classes')
        return inferencer_of_classifier(cfg, model, args.device, classes)

    apis = import_module(f'{scope}.apis')
    base = apis.DetInferencer if scope == 'mmdet' else apis.MMSegInferencer

    class StrictInferencer(base):
        """Its weights come by our loader, which runs no code and takes no other model's."""

        def _load_weights_to_model(self, model, checkpoint, cfg) -> None:
            load(model)
            model.dataset_meta = meta = names_and_colours(cfg, args.checkpoint)
            if scope == 'mmdet':
                colours = meta.get('palette', ())
                enough = colours and len(colours) >= len(meta.get('classes', ()))
                meta['palette'] = args.palette or (colours if enough else 'random')
                return
            classes = meta.setdefault('classes', [str(i) for i in range(model.num_classes)])
            if len(meta.get('palette', ())) != len(classes):
                colours = np.random.default_rng(42).integers(0, 256, (len(classes), 3))
                meta['palette'] = colours.tolist()

    inferencer = StrictInferencer(cfg, device=args.device)
    inferencer.show_progress = False  # there is one for all images
    return inferencer


def downloaded(address: str, folder: Path) -> Photo:
    """An image from an address, in a folder of ours. If none comes from there, end and say why."""
    try:
        name = Path(unquote(urlsplit(address).path)).name
        with urlopen(address, timeout=PATIENCE) as answer:
            content = answer.read()
    except (OSError, HTTPException, ValueError) as error:  # a ValueError: it is no address
        end(f'{address} cannot be opened ({error}); check the address')
    suffix = Path(name).suffix.lower()
    path = folder / f'image{suffix if suffix in SUFFIXES else ""}'
    write_whole(path, content)
    return Photo(address, file_name(Path(name).stem), path)


def file_name(name: str) -> str:
    """A name for results: itself, unless it is none for a file, or too long for one."""
    name = re.sub(r'[\0-\x1f\x7f/]', '-', name)
    if name in ('', '.', '..'):
        return 'image'
    written = os.fsencode(name)
    if len(written) <= MOST:
        return name
    kept = written[: MOST - 9].decode(errors='ignore')
    return f'{kept}-{sha256(written).hexdigest()[:8]}'  # which tells it from others as long


def check_image(photo: Photo, color: str) -> None:
    """Raise a ValueError unless all of a file can be read as an image, as the config reads it."""
    import mmcv

    if color == 'tifffile':  # of many bands, which Pillow and OpenCV do not know
        try:
            read_image(photo.path, color)
        except OSError as error:
            raise ValueError(f'{photo.title}: {error}; copy or download it again') from error
        return
    try:
        with Image.open(photo.path, formats=FORMATS) as image:
            image.load()
        if mmcv.imfrombytes(photo.path.read_bytes()) is None:
            raise ValueError('OpenCV does not read this format')
    except Image.DecompressionBombError as error:
        raise ValueError(f'{photo.title} is too large ({error}); make it smaller') from error
    except Exception as error:  # which ones Pillow raises is not documented
        raise ValueError(
            f'{photo.title} cannot be read as an image ({error}); copy or download it again, save '
            'it as PNG or JPEG, or remove it'
        ) from error


def color_of(cfg: Config) -> str:
    """How a config's test pipeline reads images, as the metadata of a deployed file say it."""
    first = test_pipeline_of(cfg)[0]
    if first.get('imdecode_backend') == 'tifffile':
        return 'tifffile'
    return first.get('color_type', 'color')


def predict(
    inferencer, photos: List[Photo], color: str
) -> List[Tuple[Photo, Union[list, ValueError]]]:
    """Each image with its one prediction, or with the reason why there is none."""
    try:
        for photo in photos:
            check_image(photo, color)
        paths = [str(photo.path) for photo in photos]
        (data,) = inferencer.preprocess(paths, batch_size=len(paths))
        if not isinstance(data, dict):  # mmdet's, with the paths beside it
            _, data = data
        return [(photo, [one]) for photo, one in zip(photos, inferencer.forward(data))]
    except (ValueError, RuntimeError, AssertionError) as error:
        if len(photos) == 1:
            return [(photos[0], reason_for(error, photos[0]))]
    # One of them is broken, some models take images of one size alone, or the memory is too small.
    return [pair for photo in photos for pair in predict(inferencer, [photo], color)]


def reason_for(error: Exception, photo: Photo) -> ValueError:
    """Why an image has no prediction. What is no fault of the image is raised."""
    if isinstance(error, ValueError):
        if photo.title in str(error):
            return error
        return ValueError(f'{photo.title}: {error}')
    if 'memory' not in str(error):
        raise error
    return ValueError(
        f'{photo.title} needs more memory than there is ({str(error).splitlines()[0]}); make the '
        'image smaller, or take --device cpu'
    )


def first_bands(image: np.ndarray) -> Image.Image:
    """The first three bands of an image as red, green and blue, or the first as grey, to draw on.

    Values beyond 8 bits are scaled to the range of the image.
    """
    bands = image[..., :3] if image.ndim == 3 and image.shape[2] >= 3 else image
    bands = bands[..., 0] if bands.ndim == 3 and bands.shape[2] < 3 else bands
    if bands.dtype != np.uint8:
        bands = bands.astype(np.float64)
        low, high = bands.min(), bands.max()
        bands = (255 * (bands - low) / max(high - low, 1e-12)).round().astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(bands)).convert('RGB')


def draw(inferencer, photo: Photo, samples: list, args) -> Image.Image:
    """The picture that the toolbox draws."""
    scope = args.cfg.default_scope
    options = dict(show=args.show, wait_time=args.wait_time)
    with TemporaryDirectory() as folder:  # without one, mmpretrain's draws only to show
        path = photo.path
        if color_of(args.cfg) == 'tifffile':
            path = Path(folder, 'bands.png')
            with whole_file(path) as temporary:
                first_bands(read_image(photo.path, 'tifffile')).save(temporary)
        if scope == 'mmpretrain':
            options.update(resize=args.resize, show_dir=folder)
        elif scope == 'mmdet':
            options.update(pred_score_thr=args.pred_score_thr, return_vis=True)
        else:
            options.update(opacity=args.opacity, with_labels=args.with_labels, return_vis=True)
        (picture,) = inferencer.visualize([str(path)], samples, **options)
    return Image.fromarray(np.ascontiguousarray(picture))


def describe(inferencer, samples: list, args) -> tuple:
    """A prediction for JSON, a line about it, and the label of each pixel of a segmentation."""
    scope = args.cfg.default_scope
    results = inferencer.postprocess(samples, None)
    if scope == 'mmpretrain':
        (result,) = results
        result['pred_scores'] = result['pred_scores'].tolist()
        name = result.get('pred_class', f'class {result["pred_label"]}')
        return result, f'{name} ({result["pred_score"]:.0%})', None
    classes = inferencer.model.dataset_meta['classes']
    if scope == 'mmdet':
        (result,) = results['predictions']
        result['classes'] = [classes[label] for label in result['labels']]
        counts = Counter(
            name
            for name, score in zip(result['classes'], result['scores'])
            if score >= args.pred_score_thr
        )
        listed = ', '.join(f'{count} {name}' for name, count in counts.most_common(MANY))
        return result, listed or f'nothing above {args.pred_score_thr}', None
    labels = results['predictions'].astype(np.uint8 if len(classes) <= 256 else np.uint16)
    shares = np.bincount(labels.ravel(), minlength=len(classes)) / labels.size
    order = [int(i) for i in np.argsort(-shares, kind='stable') if shares[i] > 0]
    listed = ', '.join(f'{classes[i]} {shares[i]:.0%}' for i in order[:MANY])
    return dict(shares={classes[i]: float(shares[i]) for i in order}), listed, labels


def photos_of(args, folder: Path) -> List[Photo]:
    """The images. Results are called as their image, with its ending if two would share a name."""
    if not args.paths:
        return [downloaded(args.inputs, folder)]
    stems = Counter(path.stem for path in args.paths)
    whole_names = {path.name for path in args.paths}
    photos = []
    for path in args.paths:
        is_alone = stems[path.stem] == 1 and path.stem not in whole_names
        name = path.stem if is_alone else path.name
        photos.append(Photo(str(path), file_name(name), path))
    return photos


def write(inferencer, photo: Photo, samples: list, args) -> str:
    """Write and show what was predicted for an image; a line about it."""
    vis, preds = args.out_dir / 'vis', args.out_dir / 'preds'
    result, line, labels = describe(inferencer, samples, args)
    if not args.no_save_pred:
        write_json(preds / f'{photo.name}.json', dict(image=photo.title, **result))
        if labels is not None:
            with whole_file(preds / f'{photo.name}.png') as temporary:
                Image.fromarray(labels).save(temporary)
    if args.show or not args.no_save_vis:
        picture = draw(inferencer, photo, samples, args)
    if not args.no_save_vis:
        with whole_file(vis / f'{photo.name}.png') as temporary:
            picture.save(temporary)
    return f'{photo.title}: {line}'


def main() -> None:
    args = parse_args()
    left_out = 0
    with TemporaryDirectory() as folder:
        photos = photos_of(args, Path(folder))
        inferencer, color = build_inferencer(args), color_of(args.cfg)
        if args.optimize:
            optimize(inferencer.model, inplace=True)
        with Progress(transient=True) as progress:
            task = progress.add_task('Inference', total=len(photos))
            for start in range(0, len(photos), args.batch_size):
                batch = photos[start : start + args.batch_size]
                for photo, prediction in predict(inferencer, batch, color):
                    if isinstance(prediction, ValueError):
                        left_out += 1
                        line = f'error: {prediction}'
                    else:
                        line = write(inferencer, photo, prediction, args)
                    progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
                    progress.advance(task)
    folders = []
    if not args.no_save_vis:
        folders.append(str(args.out_dir / 'vis'))
    if not args.no_save_pred:
        folders.append(str(args.out_dir / 'preds'))
    if left_out < len(photos) and folders:
        sys.stdout.write(f'wrote {" and ".join(folders)}\n')
    if left_out:
        sys.exit(f'{left_out} of {len(photos)} images were left out, for the reasons above')


if __name__ == '__main__':
    main()
