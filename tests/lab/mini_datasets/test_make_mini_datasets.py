"""The mini data sets hold what their labels say, and are the same every time."""

import gzip
import hashlib
import re

import numpy as np
import pytest
import torch
from conftest import ROOT, fewer_pictures, output_of, refusal_of
from PIL import Image, ImageOps
from torchvision.ops import masks_to_boxes

from mmlaplace.lab.mini_datasets import fashion, pictures, rendered

TOOL = ROOT / 'tools/dataset_converters/make_mini_datasets.py'


def content(folder) -> dict:
    """All files but the sheet, a plot into which matplotlib writes its version."""
    files = [p for p in folder.rglob('*') if p.name != 'made_by.json']
    return {path.relative_to(folder): path.read_bytes() for path in files if path.is_file()}


@pytest.mark.slow
def test_same_seed_same_data_which_is_kept_and_foreign_data_is_refused(mini_data, tmp_path):
    with fewer_pictures():
        output_of(TOOL, '--tasks', 'segmentation', '--out', tmp_path)
    assert content(tmp_path / 'segmentation') == content(mini_data / 'segmentation')
    assert 'is there already' in output_of(TOOL, '--tasks', 'segmentation', '--out', mini_data)
    (tmp_path / 'detection').mkdir()
    assert '--force' in refusal_of(TOOL, '--tasks', 'detection', '--out', tmp_path)


@pytest.mark.slow
def test_wider_views_of_textures_show_the_same_places(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, 'PATCHES', {'train': 16, 'val': 8})  # all take seconds
    output_of(TOOL, '--tasks', 'textures', '--out', tmp_path)
    folder = tmp_path / 'textures'
    for side in (96, 128):
        for path in (folder / 'val').glob('*/0007.png'):
            wide = Image.open(folder / f'val_{side}' / path.parent.name / path.name)
            middle = ImageOps.crop(wide, (side - 64) // 2)
            assert middle.tobytes() == Image.open(path).tobytes()
    train = {path.read_bytes() for path in (folder / 'train').glob('*/*.png')}
    assert not train & {path.read_bytes() for path in (folder / 'val').glob('*/*.png')}


def test_no_handwriting_is_in_training_and_validation():
    train, val = (pictures.Source(split, seed=0) for split in ('train', 'val'))
    assert len(train.glyphs) + len(val.glyphs) == 1797  # all of scikit-learn's digits
    assert not {g.tobytes() for g in train.glyphs} & {g.tobytes() for g in val.glyphs}


def test_detection_boxes_fit_their_masks_and_images(mini_data):
    coco_module = pytest.importorskip('pycocotools.coco')
    root = mini_data / 'detection'
    for split in ('train', 'val'):
        coco = coco_module.COCO(str(root / f'annotations/{split}.json'))
        for image in coco.dataset['images'][:20]:
            with Image.open(root / split / image['file_name']) as picture:
                assert picture.size == (image['width'], image['height'])
                gray = np.asarray(picture.convert('L'), dtype=float)
            annotations = coco.loadAnns(coco.getAnnIds(image['id']))
            assert 2 <= len(annotations) <= 5
            masks = torch.tensor(np.stack([coco.annToMask(each) for each in annotations]))
            boxes = torch.tensor([each['bbox'] for each in annotations])
            boxes[:, 2:] += boxes[:, :2] - 1  # of pixels, from the first to the last
            assert torch.equal(boxes, masks_to_boxes(masks).long())
            assert [each['area'] for each in annotations] == masks.sum((1, 2)).tolist()
            union = masks.sum(0).numpy()
            assert union.max() == 1
            # Bright digits on dimmed photographs.
            assert gray[union == 1].mean() > 1.5 * gray[union == 0].mean()


def test_segmentation_labels_are_where_the_digits_are(mini_data):
    root, seen = mini_data / 'segmentation', set()
    for folder in ('training', 'validation'):
        images = sorted((root / 'images' / folder).iterdir())
        for path in images[:30]:
            labels = np.asarray(Image.open(root / 'annotations' / folder / path.name))
            gray = np.asarray(Image.open(path).convert('L'), dtype=float)
            assert labels.shape == gray.shape == (128, 128)
            seen |= set(np.unique(labels).tolist())
            assert gray[labels > 1].mean() > 1.5 * gray[labels == 1].mean()
    assert seen == set(range(12))


def test_targets_of_rendered_rooms_fit_the_image(tmp_path, monkeypatch):
    monkeypatch.setattr(rendered, 'COUNTS', {'training': 1, 'validation': 1})
    rendered.make_rendered(tmp_path, seed=0)
    seen = []
    for split in ('training', 'validation'):
        image, targets = (
            np.asarray(Image.open(tmp_path / kind / split / '000000.png'))
            for kind in ('images', 'targets')
        )
        near, edges, segments = np.moveaxis(targets.astype(float), -1, 0)
        assert image.shape == targets.shape == (128, 128, 3)
        assert near[-1].mean() > 2 * near[0].mean()  # the floor ends below the camera
        assert len(np.unique(segments)) <= rendered.SEGMENTS + 40 < len(np.unique(image))
        assert edges.std() > 5
        seen.append(rendered.photographs(split))
    assert not {p.tobytes() for p in seen[0]} & {p.tobytes() for p in seen[1]}


def test_fashion_is_taken_packed_or_not_or_refused(fashion_files, tmp_path, monkeypatch):
    source = fashion_files(tmp_path / 'source')
    digests = {n: hashlib.sha256((source / n).read_bytes()).hexdigest() for n in fashion.DIGESTS}
    monkeypatch.setattr(fashion, 'DIGESTS', digests)
    options = ('--tasks', 'fashion', '--fashion-files', source, '--out', tmp_path, '--force')
    (tmp_path / 'elsewhere').mkdir()
    (tmp_path / 'elsewhere/mine.txt').touch()
    (tmp_path / 'fashion').symlink_to('elsewhere')  # as on a larger disk
    packed = source / f'{fashion.TEST_IMAGES}.gz'
    content = (source / fashion.TEST_IMAGES).read_bytes()
    (source / fashion.TEST_IMAGES).unlink()
    assert 'apt-get install dataset-fashion-mnist' in refusal_of(TOOL, *options)
    for wrong, said in (
        (gzip.compress(content)[:-9], 'cannot be unpacked'),
        (gzip.compress(content + b'0'), 'has the SHA-256'),
    ):
        packed.write_bytes(wrong)
        assert re.search(f'{said}.*get it again', refusal_of(TOOL, *options))
    packed.write_bytes(gzip.compress(content))
    output_of(TOOL, *options)
    images, labels = fashion.read_part(tmp_path / 'fashion', 't10k')
    assert images.shape == (40, 28, 28) and labels.tolist() == [*range(10)] * 4
    assert (tmp_path / 'elsewhere/mine.txt').exists()
