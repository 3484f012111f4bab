"""Detect objects in a large image by tiles, as SAHI does, and merge boxes and masks of all tiles.

There are a picture in OUT_DIR/vis and a JSON file in OUT_DIR/preds, as of image_demo.py. For a
segmentor, image_demo.py has mmseg's own way: --cfg-options model.test_cfg.mode=slide and others.

Examples:
  python demo/large_image_demo.py large.jpg CONFIG CHECKPOINT --tile 1024
  python demo/large_image_demo.py large.jpg CONFIG CHECKPOINT --tile 800 --overlap 200 --device cuda
"""

import importlib
from pathlib import Path

import mmcv
import numpy as np
import torch
from mmengine.config import Config

from mmlaplace.commands.command_line import (
    ToolParser,
    at_least,
    check_backbone,
    load_or_exit,
    positive,
    write_json,
)
from mmlaplace.deployment.inferencers import names_and_colours
from mmlaplace.deployment.tiles import TileError, detect_in_tiles, tile_corners
from mmlaplace.model_zoo import build_model
from mmlaplace.writing import whole_file


def parse_args():
    parser = ToolParser(__doc__)
    parser.add_argument('image', type=Path)
    parser.add_trained_model('detector')
    parser.add_argument('--tile', type=positive, default=1024, help='side in pixels; default: 1024')
    parser.add_argument(
        '--overlap',
        type=lambda text: at_least(0, text),
        help='pixels that two tiles share at least, as wide as the objects; default: a fifth',
    )
    parser.add_argument('--score-thr', type=float, default=0.3, help='default: 0.3')
    parser.add_argument('--iou-thr', type=float, default=0.5, help='of the merging; default: 0.5')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--out-dir', type=Path, default=Path('outputs'), help='default: outputs')
    args = parser.parse_args()
    args.overlap = args.tile // 5 if args.overlap is None else args.overlap
    args.cfg = Config.fromfile(args.config)
    if args.cfg.get('default_scope') != 'mmdet':
        parser.error(
            f'{args.config} is no config of a detector; for a segmentor take demo/image_demo.py '
            'with --cfg-options model.test_cfg.mode=slide'
        )
    return parser, args


def main() -> None:
    parser, args = parse_args()
    image = mmcv.imread(str(args.image))
    if image is None:
        parser.error(f'{args.image} cannot be read as an image; check the path')
    with parser.refusing(TileError, start=f'{args.image}: '):
        count = len(tile_corners(image.shape[:2], args.tile, args.overlap))
    check_backbone(args.cfg, args.config)
    model = build_model(args.cfg)
    load_or_exit(model, args.checkpoint, min_matched=1)
    model.cfg = args.cfg
    model.dataset_meta = names_and_colours(args.cfg, args.checkpoint)
    found = detect_in_tiles(
        model.to(args.device).eval(), image, args.tile, args.overlap, args.iou_thr, args.score_thr
    )
    classes = list(model.dataset_meta.get('classes', ()))
    write_result(args, found, classes)
    draw(args, image, found, model.dataset_meta)
    print(
        f'{len(found)} objects in {count} tiles; wrote {args.out_dir}/vis and {args.out_dir}/preds'
    )


def write_result(args, found, classes) -> None:
    """The objects as JSON, and masks as COCO's RLE."""
    result = dict(
        image=str(args.image),
        bboxes=found.bboxes.tolist(),
        scores=found.scores.tolist(),
        labels=found.labels.tolist(),
        classes=[classes[label] for label in found.labels] if classes else [],
    )
    if 'masks' in found:
        encode = importlib.import_module('mmdet.structures.mask').encode_mask_results
        masks = encode(found.masks.numpy())
        result['masks'] = [dict(mask, counts=mask['counts'].decode()) for mask in masks]
    write_json(args.out_dir / f'preds/{args.image.stem}.json', result)


def draw(args, image: np.ndarray, found, meta) -> None:
    """The picture that mmdet draws."""
    visualizer = importlib.import_module('mmdet.visualization').DetLocalVisualizer()
    visualizer.dataset_meta = dict(meta, palette='random')
    sample = importlib.import_module('mmdet.structures').DetDataSample(pred_instances=found)
    visualizer.add_datasample(
        'image', mmcv.bgr2rgb(image), sample, draw_gt=False, pred_score_thr=args.score_thr
    )
    with whole_file(args.out_dir / f'vis/{args.image.stem}.png') as temporary:
        mmcv.imwrite(mmcv.rgb2bgr(visualizer.get_image()), str(temporary))


if __name__ == '__main__':
    main()
