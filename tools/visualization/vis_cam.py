"""Draw class activation maps of a classifier, detector or segmentor, by the package grad-cam.

The maps show which places of a layer's map support a class. The explained score is

  of a classifier   the logit of the class
  of a detector     the sum of the scores of the class's detections, which are drawn too
  of a segmentor    the sum of the class's logits where it is predicted, which is outlined

Layers are stages of the backbone, 0 to 3, or names of modules. Maps of several layers are averaged.
If a classifier sees a class token alone, as SOFT's does, the map of the last stage is taken at the
input of the last attention. EigenCAM uses no class and no gradients, and its sign is arbitrary.

Examples:
  python tools/visualization/vis_cam.py IMG CONFIG CHECKPOINT --target-category 281
  python tools/visualization/vis_cam.py IMG1 IMG2 CONFIG CHECKPOINT --method LayerCAM
  python tools/visualization/vis_cam.py CONFIG CHECKPOINT --count 6   # of the config's test set
  python tools/visualization/vis_cam.py IMG CONFIG CHECKPOINT \\
      --target-layers 1 2 neck.fpn_convs.0 --out cam.png
"""

import argparse
import math
import random
from itertools import accumulate
from operator import mul
from pathlib import Path
from textwrap import fill
from typing import Any, List, NamedTuple, Optional
from unittest import mock

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from matplotlib.patches import Rectangle
from mmengine.config import Config, DictAction
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DATASETS, DefaultScope
from rich.progress import track
from torch import Tensor

from mmlaplace.commands.command_line import PICTURES, ToolParser, positive, trained_model
from mmlaplace.commands.refusals import first_checks
from mmlaplace.lab.figures import new_figure, save
from mmlaplace.models.layers import tokens_to_map
from mmlaplace.models.layers.class_attention import ClassAttention

METHODS = (
    'GradCAM',
    'GradCAMPlusPlus',
    'HiResCAM',
    'LayerCAM',
    'XGradCAM',
    'EigenGradCAM',
    'EigenCAM',
)
MIN_SCORE = 0.3  # of a detection that counts


class LayerError(ValueError):
    """A layer whose output is no map."""


def classified(model: nn.Module, inputs: Tensor, samples: list, num_classes: int) -> tuple:
    return model(inputs, mode='tensor'), None


def detected(model: nn.Module, inputs: Tensor, samples: list, num_classes: int) -> tuple:
    from mmdet.models.dense_heads import base_dense_head
    from mmdet.models.utils import select_single_mlvl

    # Detections of dense heads are detached from the graph for the sake of two-stage training.
    attached = mock.patch.object(
        base_dense_head,
        'select_single_mlvl',
        lambda levels, image, detach=True: select_single_mlvl(levels, image, detach=False),
    )
    with attached:
        (sample,) = model.predict(inputs, samples, rescale=False)
    detections = sample.pred_instances[sample.pred_instances.scores >= MIN_SCORE]
    is_of_class = F.one_hot(detections.labels, num_classes).to(detections.scores)
    return (detections.scores @ is_of_class)[None], detections


def segmented(model: nn.Module, inputs: Tensor, samples: list, num_classes: int) -> tuple:
    logits = model(inputs, samples, mode='tensor')
    predicted = F.interpolate(logits, inputs.shape[2:], mode='bilinear').argmax(1)[0]
    of_class = F.one_hot(logits.argmax(1), logits.shape[1]).movedim(-1, 1)
    return (logits * of_class).sum((2, 3)), predicted


SCORERS = dict(mmpretrain=classified, mmdet=detected, mmseg=segmented)


class Scores(nn.Module):
    """A model as grad-cam wants it: an image ``(1, 3, H, W)`` to scores ``(1, classes)``.

    Attributes:
        samples: The data samples of the image, to be set before each.
        found: What the last scores were summed over: detections, or the map of predicted classes.
    """

    def __init__(self, model: nn.Module, scope: str, num_classes: int) -> None:
        super().__init__()
        self.model = model
        self.scorer = SCORERS[scope]
        self.num_classes = num_classes
        self.samples = self.found = self.size = None

    def forward(self, inputs: Tensor) -> Tensor:
        self.size = inputs.shape[2:]
        scores, self.found = self.scorer(self.model, inputs, self.samples, self.num_classes)
        return scores

    def to_map(self, x: Tensor) -> Tensor:
        """What a layer returned as a map, without a class token."""
        if x.dim() == 4:
            return x
        for stride in accumulate(self.model.backbone.stage_strides, mul):
            height, width = (-(-side // stride) for side in self.size)
            if x.shape[1] - height * width in (0, 1):
                return tokens_to_map(x[:, -height * width :], (height, width))
        raise LayerError(
            f'a target layer must return a map or its tokens, got {tuple(x.shape)}; choose another '
            'by --target-layers'
        )


def find_layer(parser: argparse.ArgumentParser, model: nn.Module, name: str) -> nn.Module:
    """A layer by its name, or the last of a stage that what comes behind depends on."""
    backbone = model.backbone
    if not name.isdecimal():
        try:
            return model.get_submodule(name)
        except AttributeError as error:
            parser.error(
                f'--target-layers {name}: {error}; give the name of a layer, or the number of a '
                'stage'
            )
    stage = int(name)
    if stage >= len(backbone.stages):
        parser.error(f'--target-layers {name}: the stages are from 0 to {len(backbone.stages) - 1}')
    last = backbone.stages[stage]['blocks'][-1]
    if getattr(backbone, 'out_type', None) == 'cls_token' and backbone.cls_tokens[stage]:
        return last.norm1  # behind it, the score depends on the class token alone
    end = getattr(backbone, f'norm{stage}', last)
    return last if isinstance(end, ClassAttention) else end  # which gives a class token alone


def load_images(cfg: Config, images: Optional[List[str]], count: int, seed: int) -> List[dict]:
    """Images by the test pipeline: those named, or some of the test set."""
    dataset_cfg = cfg.test_dataloader.dataset
    if images:
        steps = [step for step in dataset_cfg.pipeline if 'Annotations' not in step['type']]
        pipeline = Compose(steps)
        return [pipeline(dict(img_path=path, img_id=i)) for i, path in enumerate(images)]
    dataset = DATASETS.build(dataset_cfg)
    shown = random.Random(seed).sample(range(len(dataset)), min(count, len(dataset)))
    return [dataset[i] for i in shown]


def pixels_of(image: Tensor) -> np.ndarray:
    """What is drawn of a loaded image ``(C, H, W)``: RGB or grey pixels ``(H, W, C)``, 0 to 1.

    Of more than three bands, these are the first three, which are blue, green and red in a file of
    colours and opacity. Of two, it is the first.
    """
    bands = image[: 3 if len(image) >= 3 else 1].permute(1, 2, 0).numpy()[..., ::-1]
    return bands / np.float32(max(255, bands.max()))  # bands may have more than 8 bits


class Picture(NamedTuple):
    """What is drawn of one image."""

    pixels: np.ndarray
    heated: np.ndarray
    category: int
    found: Any
    title: str


def outline(axis, found, category: int) -> None:
    """Draw what a score was summed over."""
    if isinstance(found, Tensor):
        axis.contour(found.cpu() == category, levels=[0.5], colors='white', linewidths=1.2)
    elif found is not None:
        for left, top, right, bottom in found.bboxes[found.labels == category].tolist():
            box = Rectangle((left, top), right - left, bottom - top)
            box.set(fill=False, edgecolor='white', linewidth=1.2)
            axis.add_patch(box)


def draw(pictures: List[Picture], title: str, path: Path) -> None:
    """Pairs of an image and its map, three in a row."""
    pairs = min(len(pictures), 3)
    rows = math.ceil(len(pictures) / pairs)
    height, width = pictures[0].pixels.shape[:2]
    size = 4 * pairs, rows * (2 * height / width + 0.3) + 0.4
    figure, axes = new_figure(rows, 2 * pairs, size, squeeze=False)
    for axis in axes.flat:
        axis.axis('off')
    for picture, (left, right) in zip(pictures, axes.reshape(-1, 2)):
        left.imshow(picture.pixels)
        right.imshow(picture.heated)
        right.set_title(fill(picture.title, 28), fontsize=9)  # letters that fit above it
        outline(right, picture.found, picture.category)
    figure.suptitle(fill(title, 40 * pairs), fontsize=11)  # letters that fit into the width
    save(figure, path, dpi=100)


def parse_args(parser: ToolParser) -> argparse.Namespace:
    """The arguments, of which the last two paths are the config and the checkpoint."""
    parser.add_argument(
        'paths',
        nargs='+',
        metavar='PATH',
        help='images, and a trained classifier, detector or segmentor; without images some of the '
        'test set of its config',
    )
    parser.add_argument('--count', type=positive, default=6, help='of these; default: %(default)s')
    parser.add_argument('--seed', type=int, default=0, help='that draws them; default: %(default)s')
    parser.add_argument('--method', choices=METHODS, default='GradCAM', help='default: %(default)s')
    parser.add_argument(
        '--target-layers', nargs='+', metavar='LAYER', help='default: the last stage'
    )
    parser.add_argument(
        '--target-category',
        type=int,
        dest='category',
        help='index of the class; default: the highest score in each image',
    )
    parser.add_argument(
        '--gamma', type=float, default=1, help='below 1 it lightens what is drawn; default: 1'
    )
    parser.add_output('--out', suffixes=PICTURES, default=Path('work_dirs/cam.png'))
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={})
    parser.usage = '%(prog)s [IMG ...] CONFIG CHECKPOINT [options]'
    args = parser.parse_args()
    if len(args.paths) < 2:
        parser.error(
            f'there is only {args.paths[0]}; give any images, then a config and its checkpoint'
        )
    if args.gamma <= 0:
        parser.error(f'--gamma must be positive, got {args.gamma}')
    *args.images, args.config, args.checkpoint = args.paths
    for path in args.images:
        if '://' not in path and not Path(path).is_file():
            parser.error(f'there is no image {path}; check the path')
    return args


def main() -> None:
    parser = ToolParser(__doc__)
    args = parse_args(parser)
    try:
        import pytorch_grad_cam
        from pytorch_grad_cam.utils.image import show_cam_on_image
    except ModuleNotFoundError as error:
        parser.error(f'{error}; install it with pip install grad-cam')

    cfg, model = trained_model(args, 'test_dataloader.dataset')
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        of_config = () if args.images else ('test',)
        with parser.refusing(OSError), first_checks(cfg, of_config):
            images = load_images(cfg, args.images, args.count, args.seed)
        dataset = cfg.test_dataloader.dataset
        with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
            known = registry.get(dataset.type).METAINFO
        classes = dict(known, **(dataset.get('metainfo') or {})).get('classes', ())

    def chosen(scores: Tensor) -> int:
        """The class to explain, from the scores of all."""
        if args.category is None:
            return scores.argmax().item()
        if not 0 <= args.category < len(scores):
            parser.error(
                f'--target-category must be from 0 to {len(scores) - 1}, got {args.category}'
            )
        return args.category

    def target(scores: Tensor) -> Tensor:
        if not scores.requires_grad:
            parser.error(
                f'--method {args.method} needs gradients, but the detections of '
                f'{type(model).__name__} have none; take --method EigenCAM'
            )
        return scores[chosen(scores)]

    scores = Scores(model, cfg.default_scope, len(classes))
    layers = args.target_layers or [str(len(model.backbone.stages) - 1)]
    cam = getattr(pytorch_grad_cam, args.method)(
        model=scores,
        target_layers=[find_layer(parser, model, layer) for layer in layers],
        reshape_transform=scores.to_map,
    )
    pictures = []
    for data in track(images, 'images', transient=True):
        batch = model.data_preprocessor(pseudo_collate([data]), False)
        scores.samples = batch['data_samples']
        with parser.refusing(LayerError):
            (heat,) = cam(batch['inputs'].requires_grad_(), [target])
        category = chosen(cam.outputs[0])
        pixels = pixels_of(data['inputs']) ** args.gamma
        height, width = pixels.shape[:2]  # without the padding of the preprocessor
        heated = show_cam_on_image(pixels, heat[:height, :width], use_rgb=True)
        name = classes[category] if classes else category
        missing = ': none' if cam.outputs[0, category] == 0 else ''
        pictures.append(Picture(pixels, heated, category, scores.found, f'class {name}{missing}'))
    places = ', '.join(f'stage {layer}' if layer.isdecimal() else layer for layer in layers)
    draw(pictures, f'{Path(args.config).stem}: {args.method} at {places}', args.out)
    print(f'wrote {args.out}')


if __name__ == '__main__':
    main()
