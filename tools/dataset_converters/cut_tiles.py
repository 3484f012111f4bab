"""Cut large images into tiles to train on, with their boxes, masks or label images.

Of COCO's format, --boxes is the JSON. A tile keeps an object of which enough is in it, and its box
and mask are cut at the border. With --labels, label images of the same names are cut as well.

Examples:
  python tools/dataset_converters/cut_tiles.py data/large/train --out data/mine/train --tile 1024 \\
      --boxes data/large/annotations/train.json --boxes-out data/mine/annotations/train.json
  python tools/dataset_converters/cut_tiles.py data/large/images/train --tile 1024 \\
      --out data/mine/images/training --labels data/large/annotations/train \\
      --labels-out data/mine/annotations/training
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
from PIL import Image

from mmlaplace.commands.command_line import ToolParser, at_least, positive
from mmlaplace.commands.own_data import SUFFIXES, images_in
from mmlaplace.deployment.tiles import TileError, tile_corners
from mmlaplace.writing import whole_file, write_whole


def parse_args():
    parser = ToolParser(__doc__)
    parser.add_argument('images', type=Path, help='a folder of large images')
    parser.add_argument('--out', type=Path, required=True, help='the folder of the tiles')
    parser.add_argument('--tile', type=positive, required=True, help='its side, in pixels')
    parser.add_argument(
        '--overlap',
        type=lambda text: at_least(0, text),
        help='pixels that two tiles share at least; default: an eighth of a tile',
    )
    parser.add_argument('--boxes', type=Path, help="a JSON file in COCO's format")
    parser.add_output('--boxes-out', suffixes=('.json',), help='that of the tiles')
    parser.add_argument('--labels', type=Path, help='a folder of label images, as PNG')
    parser.add_argument('--labels-out', type=Path, help='the folder of their tiles')
    parser.add_argument(
        '--keep', type=float, default=0.4, help='share of an object that a tile needs; default: 0.4'
    )
    args = parser.parse_args()
    for given, out in (('boxes', 'boxes_out'), ('labels', 'labels_out')):
        if bool(getattr(args, given)) != bool(getattr(args, out)):
            parser.error(f'--{given} and --{out.replace("_", "-")} belong together; give both')
    for folder in filter(None, (args.out, args.labels_out)):
        if folder.is_dir() and any(folder.iterdir()) and not args.force:
            parser.error(f'{folder} has files already; give another folder, or --force')
    args.overlap = args.tile // 8 if args.overlap is None else args.overlap
    return parser, args


def crop(image: Image.Image, tile: int, top: int, left: int) -> Image.Image:
    return image.crop((left, top, left + tile, top + tile))


def save(image: Image.Image, path: Path) -> None:
    """Write an image, and make its folder."""
    with whole_file(path) as temporary:
        image.save(temporary)


def cut_box(box: List[float], tile: int, top: int, left: int) -> List[float]:
    """The part of a box ``x, y, width, height`` that is in a tile, in pixels of the tile."""
    x, y, width, height = box
    low = (min(max(x - left, 0), tile), min(max(y - top, 0), tile))
    high = (min(max(x + width - left, 0), tile), min(max(y + height - top, 0), tile))
    return [low[0], low[1], high[0] - low[0], high[1] - low[1]]


def cut_mask(mask: np.ndarray, tile: int, top: int, left: int) -> Dict[str, Any]:
    """The part of a mask that is in a tile, as COCO's RLE."""
    from pycocotools import mask as coco_mask

    part = np.asfortranarray(mask[top : top + tile, left : left + tile])
    encoded = coco_mask.encode(part)
    return dict(size=encoded['size'], counts=encoded['counts'].decode())


def decoded(annotation: Dict[str, Any], height: int, width: int) -> Optional[np.ndarray]:
    """The mask ``(H, W)`` of an annotation, or None if it has none."""
    from pycocotools import mask as coco_mask

    segmentation = annotation.get('segmentation')
    if not segmentation:
        return None
    if isinstance(segmentation, list):
        segmentation = coco_mask.merge(coco_mask.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation['counts'], list):
        segmentation = coco_mask.frPyObjects(segmentation, height, width)
    return coco_mask.decode(segmentation)


def cut_objects(
    objects: List[Dict[str, Any]], shape: Tuple[int, int], tile: int, corner: Tuple[int, int], keep
) -> List[Dict[str, Any]]:
    """The annotations of a tile."""
    found = []
    for each in objects:
        box = cut_box(each['bbox'], tile, *corner)
        whole = each['bbox'][2] * each['bbox'][3]
        if not whole or box[2] * box[3] < keep * whole or not box[2] * box[3]:
            continue
        cut = dict(each, bbox=box, area=box[2] * box[3])
        mask = decoded(each, *shape)
        if mask is not None:
            top, left = corner
            cut['area'] = int(mask[top : top + tile, left : left + tile].sum())
            if not cut['area']:
                continue
            cut['segmentation'] = cut_mask(mask, tile, top, left)
        found.append(cut)
    return found


def main() -> None:
    parser, args = parse_args()
    paths = images_in(args.images)
    if not paths:
        parser.error(f'{args.images} has no image ({", ".join(SUFFIXES)})')
    content = json.loads(args.boxes.read_text(encoding='utf-8')) if args.boxes else None
    known = {each['file_name']: each for each in content['images']} if content else {}
    of_image: Dict[Any, List[Dict[str, Any]]] = defaultdict(list)
    for each in content['annotations'] if content else ():
        of_image[each['image_id']].append(each)
    made: Dict[str, list] = dict(images=[], annotations=[])
    for path in paths:
        name = path.relative_to(args.images).as_posix()
        if content is not None and name not in known:
            parser.error(f'{args.boxes} has no image {name!r}; compare its file_name')
        with Image.open(path) as image:
            shape = (image.height, image.width)
            with parser.refusing(TileError, start=f'{path}: '):
                corners = tile_corners(shape, args.tile, args.overlap)
            label = args.labels and Image.open(args.labels / Path(name).with_suffix('.png'))
            for top, left in corners:
                file = f'{Path(name).with_suffix("").as_posix()}_{top}_{left}'
                target = args.out / f'{file}{path.suffix}'
                save(crop(image, args.tile, top, left), target)
                if label:
                    save(crop(label, args.tile, top, left), args.labels_out / f'{file}.png')
                if content is None:
                    continue
                number = len(made['images'])
                entry = dict(id=number, file_name=f'{file}{path.suffix}')
                made['images'].append(dict(entry, height=args.tile, width=args.tile))
                for each in cut_objects(
                    of_image[known[name]['id']], shape, args.tile, (top, left), args.keep
                ):
                    each.update(id=len(made['annotations']) + 1, image_id=number)
                    made['annotations'].append(each)
    if content is not None:
        made['categories'] = content['categories']
        write_whole(args.boxes_out, json.dumps(made))
        count, objects = len(made['images']), len(made['annotations'])
        print(f'{count} tiles of {len(paths)} images, {objects} objects')
    else:
        print(f'tiles of {len(paths)} images are in {args.out}')


if __name__ == '__main__':
    main()
