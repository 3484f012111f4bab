"""The mini data sets hold what their labels say, and are the same every time."""

import hashlib
import json
from functools import partial

import numpy as np
import pytest
from conftest import ROOT, run_script
from PIL import Image

make = partial(run_script, ROOT / 'tools/dataset_converters/make_mini_datasets.py')


def digest(folder) -> str:
    files = sorted(p for p in folder.rglob('*') if p.suffix in ('.png', '.json'))
    content = hashlib.sha256()
    for path in files:
        # The sheet is a plot; matplotlib writes its version into it.
        if path.name not in ('contact_sheet.png', 'made_by.json'):
            content.update(path.name.encode() + path.read_bytes())
    return content.hexdigest()


@pytest.mark.slow
def test_same_seed_same_data_other_seed_other_data(mini_data, tmp_path):
    again, other = tmp_path / 'again', tmp_path / 'other'
    assert make('--tasks', 'segmentation', '--out', again).returncode == 0
    assert make('--tasks', 'segmentation', '--out', other, '--seed', 1).returncode == 0
    assert digest(again) == digest(mini_data / 'segmentation')
    assert digest(other / 'segmentation') != digest(mini_data / 'segmentation')


@pytest.mark.slow
def test_existing_data_is_kept_and_foreign_data_is_refused(mini_data, tmp_path):
    result = make('--tasks', 'segmentation', '--out', mini_data)
    assert result.returncode == 0
    assert 'is there already' in result.stdout
    foreign = tmp_path / 'segmentation'
    foreign.mkdir()
    (foreign / 'mine.txt').write_text('keep')
    result = make('--tasks', 'segmentation', '--out', tmp_path)
    assert result.returncode != 0
    assert '--force' in result.stderr
    assert (foreign / 'mine.txt').read_text() == 'keep'


@pytest.mark.slow
def test_wider_views_of_textures_show_the_same_places(tmp_path):
    assert make('--tasks', 'textures', '--out', tmp_path).returncode == 0
    folder = tmp_path / 'textures'
    assert np.asarray(Image.open(folder / 'contact_sheet.png')).std() > 20
    counts = {
        split: [len(list(label.iterdir())) for label in sorted((folder / split).iterdir())]
        for split in ('train', 'val', 'val_96', 'val_128')
    }
    assert counts == dict(train=[240] * 15, val=[60] * 15, val_96=[60] * 15, val_128=[60] * 15)
    for side in (96, 128):
        for path in sorted((folder / 'val').glob('*/0007.png')):
            wide = np.asarray(Image.open(folder / f'val_{side}' / path.parent.name / path.name))
            edge = (side - 64) // 2
            middle = wide[edge : edge + 64, edge : edge + 64]
            assert np.array_equal(middle, np.asarray(Image.open(path)))
    train = {path.read_bytes() for path in (folder / 'train').glob('*/*.png')}
    assert not train & {path.read_bytes() for path in (folder / 'val').glob('*/*.png')}


@pytest.mark.parametrize('task', ['classification', 'detection', 'segmentation'])
def test_contact_sheets_are_pictures(mini_data, task):
    sheet = Image.open(mini_data / task / 'contact_sheet.png')
    assert min(sheet.size) > 400
    assert np.asarray(sheet).std() > 20


def test_classification_has_ten_classes_and_no_shared_image(mini_data):
    pixels = {}
    for split, copies in (('train', 4), ('val', 2)):
        folders = sorted((mini_data / 'classification' / split).iterdir())
        assert [folder.name for folder in folders] == [str(digit) for digit in range(10)]
        counts = [len(list(folder.iterdir())) for folder in folders]
        assert min(counts) > 0.5 * max(counts)  # the split is random over all digits
        assert all(count % copies == 0 for count in counts)
        files = [path for folder in folders for path in folder.iterdir()]
        pixels[split] = {path.read_bytes() for path in files}
        assert Image.open(files[0]).size == (48, 48)
    assert not pixels['train'] & pixels['val']


def test_detection_boxes_fit_their_masks_and_images(mini_data):
    coco_module = pytest.importorskip('pycocotools.coco')
    for split in ('train', 'val'):
        file = mini_data / f'detection/annotations/{split}.json'
        coco = coco_module.COCO(str(file))
        assert len(coco.dataset['images']) == len(coco.getImgIds()) > 100
        assert {c['name'] for c in coco.dataset['categories']} == {str(i) for i in range(10)}
        for image in coco.dataset['images'][:20]:
            with Image.open(mini_data / 'detection' / split / image['file_name']) as picture:
                assert picture.size == (image['width'], image['height'])
                gray = np.asarray(picture.convert('L'), dtype=float)
            annotations = coco.loadAnns(coco.getAnnIds(image['id']))
            assert 2 <= len(annotations) <= 5
            union = np.zeros(gray.shape, int)
            for annotation in annotations:
                mask = coco.annToMask(annotation)
                rows, columns = np.nonzero(mask)
                left, top, width, height = annotation['bbox']
                assert (left, top) == (columns.min(), rows.min())
                assert (left + width, top + height) == (columns.max() + 1, rows.max() + 1)
                assert annotation['area'] == mask.sum()
                union += mask
            assert union.max() == 1
            # Bright digits on dimmed photographs.
            assert gray[union == 1].mean() > 1.5 * gray[union == 0].mean()


def test_segmentation_labels_are_where_the_digits_are(mini_data):
    seen = set()
    for folder, count in (('training', 600), ('validation', 150)):
        images = sorted((mini_data / 'segmentation/images' / folder).iterdir())
        assert len(images) == count
        for path in images[:30]:
            labels = np.asarray(
                Image.open(mini_data / 'segmentation/annotations' / folder / path.name)
            )
            gray = np.asarray(Image.open(path).convert('L'), dtype=float)
            assert labels.shape == gray.shape == (128, 128)
            seen |= set(np.unique(labels).tolist())
            assert gray[labels > 1].mean() > 1.5 * gray[labels == 1].mean()
    assert seen == set(range(12))


def test_detection_files_are_json_with_whole_numbers(mini_data):
    content = json.loads((mini_data / 'detection/annotations/val.json').read_text())
    assert all(isinstance(v, int) for a in content['annotations'] for v in a['bbox'])
