"""``python -m mmlaplace own``: a config for images of one's own.

Examples:
  python -m mmlaplace own classify data/mine
  python -m mmlaplace own detect data/mine --backbone mlla-tiny --out my_detector.py
  python -m mmlaplace own detect data/mine --from mask-rcnn_mlla-tiny_fpn_ms-1x_coco
  python -m mmlaplace own segment data/mine --classes road car --balance
"""

import argparse
import math
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ..checkpoints.dense import DENSE
from ..checkpoints.released import address_of, released_place
from ..config_files import channels
from ..engine.first_checks.errors import FirstCheckError
from ..model_zoo import files_root, options_of, read_models, released_weights
from ..own_models import heads, model_config
from ..writing import write_whole
from .command_line import ToolParser, positive
from .own_data import OwnData, OwnDataError, class_folders, coco_boxes, label_images

NONE = 'none'
FROM_SCRATCH = 5  # times the learning rate of a start from weights


class Task(NamedTuple):
    """How a task is trained on few images.

    Attributes:
        output: The file that is written if none is named.
        article: The model in a sentence.
        backbone: The backbone if none is named. It has a licence.
        dense: Its name in the toolboxes: ``'detection'`` or ``'segmentation'``. Empty for a
            classifier, which has no head to choose.
        batch_size: Images of a step, if there are enough.
        seen: How often images are seen in all, so that a few hundred are enough for the warm-up.
        least: The least number of epochs.
    """

    output: Path
    article: str
    backbone: str
    dense: str
    batch_size: int
    seen: int
    least: int


TASKS = dict(
    classify=Task(Path('my_classifier.py'), 'A classifier', 'mlla-tiny', '', 32, 6000, 20),
    detect=Task(Path('my_detector.py'), 'A detector', 'cswin-tiny', 'detection', 4, 4800, 12),
    segment=Task(Path('my_segmentor.py'), 'A segmentor', 'cswin-tiny', 'segmentation', 4, 8000, 20),
)
MOST_EPOCHS = 100
BOXES, MASKS = 'faster-rcnn_fpn_1x_coco', 'mask-rcnn_fpn_1x_coco'
SEGMENTOR = 'fpn_4xb4-160k_ade20k-512x512'
WITH_MASKS = ('mask-rcnn', 'mask2former')  # in the names of heads that need masks


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Write a config, and print what it has. The exit status is 2 for data that fits none."""
    parser = ToolParser(__doc__, prog='python -m mmlaplace own')
    parser.add_argument('task', choices=TASKS, help='what the model does')
    parser.add_argument('data', type=Path, help='the folder of the images; docs/tutorials has them')
    parser.add_output(
        '--out', suffixes=('.py',), help='the config; default: such as my_detector.py'
    )
    parser.add_argument(
        '--classes',
        nargs='+',
        default=(),
        metavar='NAME',
        help='detect: some of the categories; segment: all, in the order of their numbers',
    )
    parser.add_argument('--backbone', help='of python -m mmlaplace list --task backbone')
    parser.add_argument('--head', help='detect, segment: a file of configs/heads, without .py')
    parser.add_argument(
        '--from',
        dest='whole',
        metavar='NAME',
        help='detect, segment: a released detector or segmentor of COCO or ADE20K, whole',
    )
    parser.add_argument(
        '--weights',
        help=f'of the backbone: an address or a file, or {NONE!r}; default: the released ones',
    )
    parser.add_argument('--batch-size', type=positive, help='images of a step')
    parser.add_argument('--epochs', type=positive, help='default: by the number of images')
    parser.add_argument('--boxes-only', action='store_true', help='detect: leave masks out')
    parser.add_argument('--balance', action='store_true', help='segment: weigh rare classes more')
    parser.add_argument(
        '--reduce-zero-label', action='store_true', help='segment: 0 is no class, and 1 the first'
    )
    parser.add_argument(
        '--suffixes',
        nargs=2,
        metavar=('IMAGE', 'LABEL'),
        help='segment: the ends of the names of images and label images',
    )
    args = parser.parse_args(arguments)
    args.out = args.out or TASKS[args.task].output
    parser.check_output(args.out, args.force)
    with parser.refusing(OwnDataError, FirstCheckError, ValueError, ImportError):
        _refuse_options_of_other_tasks(args)
        data = read(args)
        settings = {**data.settings, **model_settings(args, data.settings)}
        settings.update(schedule(args, data.images[0], bool(settings['weights'] or args.whole)))
        build(settings)
        write_whole(args.out, fill(args, settings, data.images))
    sys.stdout.write('\n'.join(summary(args, data, settings)) + '\n')
    return 0


def _refuse_options_of_other_tasks(args: argparse.Namespace) -> None:
    """Raise an OwnDataError for an option that the task would ignore."""
    of_tasks = dict(
        classes=('detect', 'segment'),
        head=('detect', 'segment'),
        whole=('detect', 'segment'),
        boxes_only=('detect',),
        balance=('segment',),
        reduce_zero_label=('segment',),
        suffixes=('segment',),
    )
    for option, tasks in of_tasks.items():
        if getattr(args, option) and args.task not in tasks:
            name = '--from' if option == 'whole' else f'--{option.replace("_", "-")}'
            raise OwnDataError(
                f'{name} is an option of {" and ".join(tasks)}, and not of {args.task}; leave it '
                'out'
            )
    if args.whole and (args.head or args.backbone or args.weights):
        raise OwnDataError(
            f'--from {args.whole} has its own head, backbone and weights; leave out --head, '
            '--backbone and --weights'
        )
    if args.task == 'segment' and len(args.classes) < 2:
        raise OwnDataError(
            'segment needs the names of all classes in the order of their numbers, as label images '
            'have none: --classes background road car'
        )


def read(args: argparse.Namespace) -> OwnData:
    """The settings that the data decides."""
    if args.task == 'classify':
        return class_folders(args.data)
    if args.task == 'segment':
        suffixes = tuple(args.suffixes) if args.suffixes else None
        return label_images(args.data, args.classes, suffixes, args.balance, args.reduce_zero_label)
    data = coco_boxes(args.data, args.classes)
    if args.boxes_only:
        data.settings['masks'] = False
    return data


def model_settings(args: argparse.Namespace, found: Dict[str, Any]) -> Dict[str, Any]:
    """The head, the backbone and its weights."""
    task = TASKS[args.task]
    if args.whole:
        return _whole(args, found)
    backbone = args.backbone or task.backbone
    settings: Dict[str, Any] = dict(backbone=backbone, weights=_weights(args.weights, backbone))
    if task.dense:
        settings['head'] = args.head or _head(args.task, found)
        if settings['head'] not in heads():
            raise OwnDataError(
                f'there is no head {args.head!r} in configs/heads, which has {", ".join(heads())}'
            )
    if args.task == 'detect':
        _fit_masks(settings['head'], found)
    return settings


def _head(task: str, found: Dict[str, Any]) -> str:
    if task == 'segment':
        return SEGMENTOR
    return MASKS if found['masks'] else BOXES


def _fit_masks(head: str, found: Dict[str, Any]) -> None:
    """Leave masks out under a head without masks, and refuse a head that misses some."""
    needs = any(word in head for word in WITH_MASKS)
    if needs and not found['masks']:
        raise OwnDataError(
            f'{head} predicts masks, and not all boxes of train.json have a segmentation (or '
            f'--boxes-only leaves it out); take --head {BOXES}'
        )
    found['masks'] = needs


def _whole(args: argparse.Namespace, found: Dict[str, Any]) -> Dict[str, Any]:
    """A released detector or segmentor, with all its weights."""
    kind = TASKS[args.task].dense
    known = {model.name: model.task for model in read_models()}
    released = [name for name, model in DENSE.items() if model.weights and known.get(name) == kind]
    if args.whole not in released:
        raise OwnDataError(
            f'--from {args.whole}: no {kind} model of this name has a released file; those that '
            f'have one are {", ".join(sorted(released))}'
        )
    if args.task == 'detect':
        _fit_masks(args.whole, found)
    start = address_of(args.whole)
    return dict(head=args.whole, backbone=None, weights=None, load_from=start)


def _weights(given: Optional[str], backbone: str) -> Optional[str]:
    """The weights that the backbone starts from."""
    if given:
        return None if given == NONE else given
    options_of(backbone)  # raises an error with similar names
    address = released_weights(backbone, backbone_only=True)
    try:
        released_place(address)
    except ValueError as error:
        raise OwnDataError(f'{error}; or --weights {NONE} starts from scratch') from error
    return address


def schedule(args: argparse.Namespace, images: int, pretrained: bool) -> Dict[str, Any]:
    """Steps for a number of images: many epochs of few images, and a warm-up of a tenth at most."""
    task = TASKS[args.task]
    batch_size = args.batch_size or max(2, min(task.batch_size, images // 4))
    epochs = args.epochs or min(MOST_EPOCHS, max(task.least, math.ceil(task.seen / images)))
    steps = math.ceil(images / batch_size) * epochs
    learning_rate = 1e-4 if pretrained else 1e-4 * FROM_SCRATCH
    settings: Dict[str, Any] = dict(batch_size=batch_size, learning_rate=learning_rate)
    if args.task == 'classify':
        return dict(settings, epochs=epochs, warmup_epochs=max(1, epochs // 10))
    warmup_steps = max(1, min(500, steps // 10))
    length = dict(iterations=steps) if args.task == 'segment' else dict(epochs=epochs)
    return dict(settings, warmup_steps=warmup_steps, **length)


def build(settings: Dict[str, Any]) -> None:
    """Raise an error if there is no such model, before a file is written."""
    name = settings.get('head') or settings['backbone']
    backbone = settings['backbone'] if 'head' in settings else None
    model = model_config(name, len(settings['classes']), backbone)
    channels(model['backbone'])


def fill(args: argparse.Namespace, settings: Dict[str, Any], images: Sequence[int]) -> str:
    """The file of ``configs/own`` with other settings."""
    text = (files_root() / f'configs/own/{args.task}.py').read_text(encoding='utf-8')
    words = ' '.join([args.task, str(args.data)])
    header = (
        f'# {TASKS[args.task].article} of your own, for {images[0]} images to train and '
        f'{images[1]} to test.\n# python -m mmlaplace own {words} wrote it.\n'
        '# All below follows from the first lines.\n'
    )
    text = header + re.sub(r'\A(#.*\n)+', '', text)
    slash = '/' if args.task == 'detect' else ''  # mmdet joins folders as text
    for name, value in dict(settings, data_root=f'{args.data.as_posix()}{slash}').items():
        found = re.findall(rf'^{name} = .*?(?=  #|$)', text, flags=re.MULTILINE)
        if len(found) != 1:
            raise RuntimeError(
                f'configs/own/{args.task}.py has {len(found)} lines of {name}, not one'
            )
        text = text.replace(f'\n{found[0]}', f'\n{name} = {value!r}', 1)
    return text


def summary(args: argparse.Namespace, data: OwnData, settings: Dict[str, Any]) -> List[str]:
    """What the config has, and what to type next."""
    size = settings['batch_size']
    if 'iterations' in settings:
        length = f'{settings["iterations"]} steps'
    else:
        length = f'{settings["epochs"]} epochs of {math.ceil(data.images[0] / size)} steps'
    start = settings.get('load_from') or settings['weights'] or 'random weights'
    head = f'{settings["head"]} with ' if settings.get('backbone') and 'head' in settings else ''
    return [
        f'{args.out}: {data.images[0]} images to train, {data.images[1]} to test; classes '
        f'{", ".join(settings["classes"])}',
        *data.notes,
        f'{head}{settings.get("backbone") or settings["head"]}, from {start}',
        f'{length}, {size} images each, learning rate {settings["learning_rate"]:g}',
        f'Next: python tools/dry_run.py {args.out}',
        f'      python tools/train.py {args.out}',
    ]
