"""Make the table of docs/heads.md from its logs, or make the logs.

Examples:
  python .dev_scripts/make_heads_table.py          # the table
  python .dev_scripts/make_heads_table.py --check  # whether it is in step, without writing
  python .dev_scripts/make_heads_table.py --run    # parameters and memory of each; ten minutes
  python .dev_scripts/make_heads_table.py --time   # seconds an image; on an idle machine
"""

import os
import statistics
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import torch
from marked_tables import ROOT, markdown_table, parser_of_pages, with_tables, write_pages
from mmengine.config import Config
from mmengine.registry import DefaultScope

from mmlaplace.analysis.measuring import describe_machine, seconds_of
from mmlaplace.analysis.training_memory import kept_bytes
from mmlaplace.commands.command_line import read_json, write_json
from mmlaplace.commands.random_images import random_batch, random_model, train_and_predict

PAGE = ROOT / 'docs/heads.md'
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


def table(kind: str) -> str:
    """The table in Markdown."""
    rows, times = (read_json(path)['rows'] for path in (LOG, TIMES))
    header = ['head', *(f'M, {name}' for name in BACKBONES), 'images', f'GiB, {BACKBONES[0]}']
    header += [f's, {name}' for name in BACKBONES]
    lines = []
    for title, (name, (height, width)) in HEADS.items():
        keys = [f'{name} {backbone}' for backbone in BACKBONES]
        parameters = [f'{rows[key]["parameters"] / 1e6:.1f}' for key in keys]
        memory = f'{rows[keys[0]]["training_bytes"] / 2**30:.1f}'
        seconds = [f'{times[key]["seconds"]:.2f}' if key in times else '–' for key in keys]
        link = f'[{title}](../configs/heads/{name}.py)'
        lines.append([link, *parameters, f'{height} × {width}', memory, *seconds])
    return markdown_table(header, lines)


def main() -> None:
    parser = parser_of_pages(__doc__)
    parser.add_argument('--run', action='store_true', help='make the log of parameters and memory')
    parser.add_argument('--time', action='store_true', help='make the log of times')
    args = parser.parse_args()
    if args.run:
        write_log(LOG, tried)
    if args.time:
        write_log(TIMES, timed)
    write_pages({PAGE: with_tables(PAGE.read_text(), 'heads', table)}, args)


if __name__ == '__main__':
    main()
