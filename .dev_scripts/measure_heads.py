"""Measure each head of configs/heads, for the table of docs/heads.md.

It writes a log, from which make_pages.py makes the table. What the log has is not repeated.

Examples:
  python .dev_scripts/measure_heads.py         # parameters and memory of each; ten minutes
  python .dev_scripts/measure_heads.py --time  # seconds an image; on an idle machine
"""

import os
import statistics
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
CPU = torch.device('cpu')
BACKBONES = ('ravlt-tiny', 'mlla-tiny', 'pvtv2-b2')
COCO, LSJ, RTMDET, ADE = (800, 1344), (1024, 1024), (640, 640), (512, 512)
HEADS: Dict[str, Tuple[str, Tuple[int, int]]] = {
    'Mask R-CNN': ('mask-rcnn_fpn_1x_coco', COCO),
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
DEPLOYED = ('Mask R-CNN', 'RetinaNet', 'UPerNet', 'Semantic FPN', 'SegFormer')


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


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--time', action='store_true', help='seconds of an image instead')
    if parser.parse_args().time:
        write_log(TIMES, timed)
    else:
        write_log(LOG, tried)


if __name__ == '__main__':
    main()
