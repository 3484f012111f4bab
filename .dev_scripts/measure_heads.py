"""Measure each head of configs/heads, for the table of docs/heads.md.

It writes a log, from which make_pages.py makes the table. What the log has is not repeated.

Examples:
  python .dev_scripts/measure_heads.py         # parameters and memory of each; ten minutes
  python .dev_scripts/measure_heads.py --time  # seconds an image; on an idle machine
  python .dev_scripts/measure_heads.py --plain # heads on a plain ViT-S at three sizes; half an hour
"""

import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from pages.files import ROOT

from mmlaplace.analysis.measuring import describe_machine, seconds_of
from mmlaplace.analysis.training_memory import kept_bytes
from mmlaplace.commands.command_line import ToolParser, read_json, write_json
from mmlaplace.commands.random_images import random_batch, random_model, train_and_predict

LOG, TIMES = ROOT / 'docs/logs/heads.json', ROOT / 'docs/logs/heads_time.json'
PLAIN_LOG = ROOT / 'docs/logs/heads_plain.json'
CPU = torch.device('cpu')
BACKBONES = ('ravlt-tiny', 'mlla-tiny', 'pvtv2-b2', 'cswin-tiny')
COCO, LSJ, RTMDET, ADE = (800, 1344), (1024, 1024), (640, 640), (512, 512)
HEADS: Dict[str, Tuple[str, Tuple[int, int]]] = {
    'Mask R-CNN': ('mask-rcnn_fpn_1x_coco', COCO),
    'Faster R-CNN': ('faster-rcnn_fpn_1x_coco', COCO),
    'Cascade Mask R-CNN': ('cascade-mask-rcnn_fpn_1x_coco', COCO),
    'RetinaNet': ('retinanet_fpn_1x_coco', COCO),
    'FCOS': ('fcos_fpn_gn-head_1x_coco', COCO),
    'ATSS': ('atss_fpn_1x_coco', COCO),
    'RTMDet-l': ('rtmdet_4xb32-100e_coco', RTMDET),
    'DINO, 4 scales': ('dino-4scale_8xb2-12e_coco', COCO),
    'Deformable DETR': ('deformable-detr_16xb2-50e_coco', COCO),
    'DETR, Pola encoder': ('detr-pola-encoder_8xb2-150e_coco', COCO),
    'Conditional DETR, Laplacian encoder': (
        'conditional-detr-laplacian-encoder_8xb2-50e_coco',
        COCO,
    ),
    'Mask2Former, instances': ('mask2former_8xb2-lsj-50e_coco', LSJ),
    'Mask2Former, semantic': ('mask2former_8xb2-160k_ade20k-512x512', ADE),
    'UPerNet': ('upernet_4xb4-160k_ade20k-512x512', ADE),
    'Semantic FPN': ('fpn_4xb4-160k_ade20k-512x512', ADE),
    'SegFormer': ('segformer_8xb2-160k_ade20k-512x512', ADE),
    'SegNeXt': ('segnext_1xb16-160k_ade20k-512x512', ADE),
}

# Those that tools/deployment/export.py takes. tests/configs/test_heads.py compares.
DEPLOYED = (
    'Mask R-CNN',
    'Faster R-CNN',
    'Cascade Mask R-CNN',
    'RetinaNet',
    'UPerNet',
    'Semantic FPN',
    'SegFormer',
)

# Of a plain ViT: the config, and options of the backbone.
PLAIN_BACKBONE, PLAIN_SIDES, MOST_SECONDS = 'deit-small', (512, 1024, 2048), 120
PLAIN_HEADS: Dict[str, Tuple[str, Dict[str, Any]]] = {
    'Mask R-CNN, simple pyramid': ('plain/mask-rcnn_simple-pyramid_1x_coco', {}),
    'the same, windows of 16': ('plain/mask-rcnn_simple-pyramid_1x_coco', dict(window_size=16)),
    'RetinaNet, simple pyramid': ('plain/retinanet_simple-pyramid_1x_coco', {}),
    'DINO, resized pyramid': ('plain/dino-4scale_resized-pyramid_8xb2-12e_coco', {}),
    'UPerNet, simple pyramid': ('plain/upernet_simple-pyramid_4xb4-160k_ade20k-512x512', {}),
    'linear head': ('plain/linear_4xb4-80k_ade20k-512x512', {}),
    'Mask2Former, simple pyramid': (
        'plain/mask2former_simple-pyramid_8xb2-160k_ade20k-512x512',
        {},
    ),
}


def load(name: str, backbone: str) -> Config:
    os.environ['BACKBONE'] = backbone
    return Config.fromfile(ROOT / f'configs/heads/{name}.py')


def with_model(cfg: Config, shape: Tuple[int, int], count: int) -> Tuple[Any, Dict[str, Any]]:
    """The model of a config with random weights, and random images that it has normalised."""
    model = random_model(cfg)
    masks = getattr(model.data_preprocessor, 'pad_mask', False)
    batch = random_batch(cfg.default_scope, shape, count, masks)
    return model, model.data_preprocessor(batch, training=True)


def tried(name: str, backbone: str, shape: Tuple[int, int]) -> dict:
    """A step and a prediction on small images, and what a step keeps for two of the usual size.

    The memory of the other backbones is counted under Mask R-CNN alone: the difference between two
    backbones is the same under each head that takes images of that size.
    """
    found = train_and_predict(load(name, backbone), (192, 256), 2)
    if backbone != BACKBONES[0] and not name.startswith('mask-rcnn'):
        return found
    cfg = load(name, backbone)  # anew, as some models change what they are built from
    model, batch = with_model(cfg, shape, 2)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model.train().init_weights()
        kept, _ = kept_bytes(model, lambda: model(**batch, mode='loss'))
    # Weights, gradients and AdamW's two moments stay too.
    return dict(found, training_bytes=kept + 16 * found['parameters'])


def timed(name: str, backbone: str, shape: Tuple[int, int]) -> dict:
    """The median seconds of five predictions of one image, after one that is not counted."""
    cfg = load(name, backbone)
    model, batch = with_model(cfg, shape, 1)
    job = partial(model, **batch, mode='predict')
    with DefaultScope.overwrite_default_scope(cfg.default_scope), torch.inference_mode():
        model.eval().init_weights()
        seconds = [seconds_of(job, CPU) for _ in range(6)]
    return dict(image_size=shape, seconds=statistics.median(seconds[1:]))


def write_log(path: Path, measure: Callable[..., dict]) -> None:
    """A row for each head and backbone. What is in the log already is not repeated."""
    log = read_json(path) if path.is_file() else dict(rows={})
    log.update(describe_machine(CPU))
    for name, shape in HEADS.values():
        for backbone in BACKBONES:
            key = f'{name} {backbone}'
            if key not in log['rows']:
                log['rows'][key] = measure(name, backbone, shape)
                write_json(path, log)
                print(key, log['rows'][key], flush=True)


def plain_config(name: str, options: Dict[str, Any]) -> Config:
    cfg = load(name, PLAIN_BACKBONE)
    cfg.model.backbone.update(options)
    return cfg


def plain_row(name: str, options: Dict[str, Any], row: dict) -> None:
    """Add a step of a head on a plain ViT, and its memory, to a row that lacks them."""
    if 'parameters' not in row:
        row.update(train_and_predict(plain_config(name, options), (192, 256), 2))
    if 'training_bytes' not in row:
        cfg = plain_config(name, options)
        model, batch = with_model(cfg, (PLAIN_SIDES[0],) * 2, 2)
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            model.train().init_weights()
            kept, _ = kept_bytes(model, lambda: model(**batch, mode='loss'))
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        row['training_bytes'] = kept + 12 * trained + 4 * row['parameters']


def plain_seconds(name: str, options: Dict[str, Any], side: int) -> float:
    """The median time of the processor for an image, after one that is not counted.

    It is on one thread, so that other programs hardly count. A large image is predicted once.
    """
    cfg = plain_config(name, options)
    model, batch = with_model(cfg, (side, side), 1)
    with DefaultScope.overwrite_default_scope(cfg.default_scope), torch.inference_mode():
        model.eval().init_weights()
        job = partial(model, **batch, mode='predict')
        runs = 4 if side < 1024 else 1
        seconds = [seconds_of(job, CPU, time.process_time) for _ in range(runs)]
    return statistics.median(seconds[1:] or seconds)


def write_plain_log() -> None:
    """A row for each head of a plain ViT. What is in the log already is not repeated.

    After a size of over ``MOST_SECONDS``, the next is left out.
    """
    torch.set_num_threads(1)
    log = read_json(PLAIN_LOG) if PLAIN_LOG.is_file() else dict(rows={})
    log.update(describe_machine(CPU), backbone=PLAIN_BACKBONE)
    for title, (name, options) in PLAIN_HEADS.items():
        plain_row(name, options, log['rows'].setdefault(title, {}))
        write_json(PLAIN_LOG, log)
    for side in PLAIN_SIDES:
        for title, (name, options) in PLAIN_HEADS.items():
            seconds = log['rows'][title].setdefault('seconds', {})
            before = seconds.get(str(side // 2), 0)
            if str(side) not in seconds and before < MOST_SECONDS:
                seconds[str(side)] = plain_seconds(name, options, side)
                write_json(PLAIN_LOG, log)
                print(title, seconds, flush=True)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--plain', action='store_true', help='heads on a plain ViT-S instead')
    parser.add_argument('--time', action='store_true', help='seconds of an image instead')
    args = parser.parse_args()
    if args.plain:
        write_plain_log()
    elif args.time:
        write_log(TIMES, timed)
    else:
        write_log(LOG, tried)


if __name__ == '__main__':
    main()
