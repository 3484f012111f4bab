"""Large images in tiles: what is cut, and what is merged again."""

import json

import numpy as np
import pytest
import torch
from conftest import ROOT, output_of, refusal_of, run_script
from PIL import Image
from pycocotools import mask as coco_mask

from mmlaplace.deployment.tiles import TileError, merge_tiles, tile_corners, tile_starts

CUT = ROOT / 'tools/dataset_converters/cut_tiles.py'
DEMO = ROOT / 'demo/large_image_demo.py'


@pytest.mark.parametrize('side', [64, 65, 100, 127, 128, 200, 1000])
@pytest.mark.parametrize('overlap', [0, 10, 40])
def test_tiles_cover_a_side_and_share_what_was_asked(side, overlap):
    starts = tile_starts(side, 64, overlap)
    assert starts[0] == 0 and starts[-1] == side - 64
    gaps = np.diff(starts)
    assert (gaps <= 64 - overlap).all() and (gaps > 0).all()
    # No more than are needed.
    assert len(starts) == 1 or (len(starts) - 2) * (64 - overlap) + 64 < side


def test_corners_are_of_rows_and_columns():
    assert tile_corners((64, 100), 64, 0) == [(0, 0), (0, 36)]
    assert tile_corners((100, 64), 64, 0) == [(0, 0), (36, 0)]


@pytest.mark.parametrize(
    ('words', 'sentence'),
    [((50, 64, 0), 'a tile of 64 pixels is larger than a side of 50'), ((90, 64, 64), 'overlap')],
)
def test_tiles_that_do_not_fit_are_refused(words, sentence):
    with pytest.raises(TileError, match=sentence):
        tile_starts(*words)


def found_in_tile(boxes, scores, labels, masks=None):
    from mmengine.structures import InstanceData

    data = InstanceData(
        bboxes=torch.tensor(boxes, dtype=torch.float).reshape(-1, 4),
        scores=torch.tensor(scores, dtype=torch.float),
        labels=torch.tensor(labels),
    )
    if masks is not None:
        data.masks = masks
    return data


def test_an_object_of_two_tiles_is_one_with_its_box_and_mask_in_the_image():
    left, right = torch.zeros(2, 8, 8, dtype=torch.bool), torch.zeros(1, 8, 8, dtype=torch.bool)
    left[0, 2:5, 5:8] = left[1, 0, 0] = True
    right[0, 2:5, 1:4] = True
    found = [
        (found_in_tile([[5, 2, 8, 5], [0, 0, 1, 1]], [0.6, 0.5], [1, 0], left), (0, 0)),
        (found_in_tile([[1, 2, 4, 5]], [0.9], [1], right), (0, 4)),
    ]
    merged = merge_tiles(found, (8, 12), 0.5)
    assert merged.scores.tolist() == pytest.approx([0.9, 0.5])
    assert merged.bboxes.tolist() == [[5, 2, 8, 5], [0, 0, 1, 1]]
    assert merged.masks.shape == (2, 8, 12)
    assert merged.masks[0].nonzero().tolist() == [[y, x] for y in (2, 3, 4) for x in (5, 6, 7)]
    assert merged.masks[1].nonzero().tolist() == [[0, 0]]


def test_objects_of_other_classes_stay_and_no_tile_need_have_one():
    found = [
        (found_in_tile([[5, 2, 8, 5]], [0.6], [1]), (0, 0)),
        (found_in_tile([[1, 2, 4, 5]], [0.9], [0]), (0, 4)),
        (found_in_tile([], [], torch.zeros(0, dtype=torch.long).tolist()), (4, 0)),
    ]
    found[2][0].labels = found[2][0].labels.long()
    merged = merge_tiles(found, (12, 12), 0.5)
    assert len(merged) == 2 and 'masks' not in merged


@pytest.fixture
def large(tmp_path):
    """An image of 100 x 80 with a square whose mask has a corner cut off, and one outside."""
    (tmp_path / 'images').mkdir()
    Image.new('RGB', (100, 80)).save(tmp_path / 'images/a.png')
    polygon = [30, 10, 50, 10, 50, 30, 40, 30]
    boxes = [
        dict(id=1, image_id=7, category_id=2, bbox=[30, 10, 20, 20], area=300, iscrowd=0),
        dict(id=2, image_id=7, category_id=2, bbox=[90, 70, 10, 10], area=100, iscrowd=0),
    ]
    boxes[0]['segmentation'] = [polygon]
    content = dict(
        images=[dict(id=7, file_name='a.png', width=100, height=80)],
        annotations=boxes,
        categories=[dict(id=2, name='square')],
    )
    (tmp_path / 'boxes.json').write_text(json.dumps(content))
    return tmp_path


def cut(large, keep):
    """The JSON of tiles of 40 x 40 pixels, and what the tool said."""
    options = dict(out=large / 'tiles', tile=40, overlap=0, keep=keep)
    options.update({'boxes': large / 'boxes.json', 'boxes-out': large / 'tiles.json'})
    words = [word for name, value in options.items() for word in (f'--{name}', value)]
    said = output_of(CUT, large / 'images', *words)
    return json.loads((large / 'tiles.json').read_text()), said


def test_boxes_and_masks_are_cut_at_the_border_of_a_tile(large):
    made, said = cut(large, keep=0.3)
    assert said == f'6 tiles of 1 images, {len(made["annotations"])} objects\n'
    names = {image['id']: image['file_name'] for image in made['images']}
    assert len(names) == 6 and all((large / 'tiles' / name).is_file() for name in names.values())
    by_tile = {names[each['image_id']]: each for each in made['annotations']}
    # Columns begin at 0, 30 and 60: of the square, 10 to 20 pixels are in the first two.
    first, second = by_tile['a_0_0.png'], by_tile['a_0_30.png']
    assert first['bbox'] == [30, 10, 10, 20] and second['bbox'] == [0, 10, 20, 20]
    masks = [coco_mask.decode(each['segmentation']) for each in (first, second)]
    assert [mask.sum() for mask in masks] == [first['area'], second['area']]
    assert masks[0].shape == (40, 40) and first['area'] < second['area']
    assert by_tile['a_40_60.png']['bbox'] == [30, 30, 10, 10]
    assert made['categories'] == [dict(id=2, name='square')]
    assert len({each['id'] for each in made['annotations']}) == len(made['annotations'])


def test_a_tile_needs_enough_of_an_object(large):
    made, _ = cut(large, keep=0.6)
    names = {image['id']: image['file_name'] for image in made['images']}
    assert 'a_0_0.png' not in {names[each['image_id']] for each in made['annotations']}


def test_label_images_are_cut_as_the_images(large):
    (large / 'labels').mkdir()
    numbers = np.arange(80 * 100).reshape(80, 100) % 251
    Image.fromarray(numbers.astype(np.uint8)).save(large / 'labels/a.png')
    output_of(
        CUT,
        large / 'images',
        '--out',
        large / 'tiles',
        '--tile',
        64,
        '--overlap',
        8,
        '--labels',
        large / 'labels',
        '--labels-out',
        large / 'label_tiles',
    )
    part = np.asarray(Image.open(large / 'label_tiles/a_16_36.png'))
    assert (part == numbers[16:80, 36:100]).all()


@pytest.mark.parametrize(
    ('options', 'sentence'),
    [
        (('--tile', 90), 'a.png: a tile of 90 pixels is larger than a side of 80'),
        (('--tile', 40, '--boxes', 'boxes.json'), '--boxes and --boxes-out belong together'),
    ],
)
def test_what_cannot_be_cut_is_refused(large, options, sentence):
    assert sentence in refusal_of(CUT, large / 'images', '--out', large / 'tiles', *options)


@pytest.mark.slow
def test_a_large_image_is_detected_in_tiles(tmp_path, monkeypatch):
    pytest.importorskip('mmdet')
    from conftest import micro_config, quiet_init, toolbox_config, toolbox_model

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    noise = np.random.default_rng(0).integers(0, 255, (120, 150, 3), np.uint8)
    Image.fromarray(noise).save('large.png')
    config = micro_config('mask-rcnn')
    model = toolbox_model(toolbox_config(config))
    model.backbone.init_cfg = None
    quiet_init(model)
    torch.save(dict(state_dict=model.state_dict()), 'random.pth')
    words = ('large.png', config, 'random.pth', '--tile', 96, '--device', 'cpu')
    said = output_of(DEMO, *words, '--score-thr', 0.05)
    result = json.loads((tmp_path / 'outputs/preds/large.json').read_text())
    assert f'{len(result["bboxes"])} objects in 4 tiles' in said and result['bboxes']
    boxes = np.array(result['bboxes'])
    assert boxes[:, 2].max() > 96 and boxes.max() <= 150  # also of the right tiles
    assert coco_mask.decode(result['masks'][0]).shape == (120, 150)
    assert Image.open('outputs/vis/large.png').size == (150, 120)
    refused = run_script(DEMO, *words[:4], 200)
    assert refused.returncode == 2 and 'a tile of 200 pixels is larger' in refused.stderr
