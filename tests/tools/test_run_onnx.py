"""run_onnx.py sees images as the toolboxes do, and replaces none of them."""

import json
from functools import partial

import numpy as np
import pytest
from conftest import ROOT, load_tool, run_script
from PIL import Image

run = partial(run_script, ROOT / 'tools/deployment/run_onnx.py')
SIDE = 32
SIZE = ('--image-size', SIDE, SIDE)


@pytest.fixture
def segmentor(tmp_path):
    """A file as export.py writes it, whose label of a pixel is its brightest colour."""
    onnx = pytest.importorskip('onnx')
    pytest.importorskip('onnxruntime')
    helper, kinds = onnx.helper, onnx.TensorProto
    images = helper.make_tensor_value_info('images', kinds.FLOAT, [1, 3, None, None])
    labels = helper.make_tensor_value_info('labels', kinds.INT64, None)
    node = helper.make_node('ArgMax', ['images'], ['labels'], axis=1, keepdims=0)
    graph = helper.make_graph([node], 'graph', [images], [labels])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    about = dict(task='segmentation', outputs=['labels'], batch=1, size=None, multiple=1)
    entry = model.metadata_props.add()
    entry.key, entry.value = 'mmlaplace', json.dumps(dict(about, mean=[0, 0, 0]))
    onnx.save(model, tmp_path / 'segmentor.onnx')
    return tmp_path / 'segmentor.onnx'


def paint(path, *colours, **options) -> None:
    """Rows of these colours from above, 0 for red, 1 for green and 2 for blue."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    for rows, colour in zip(np.array_split(pixels, len(colours)), colours):
        rows[..., colour] = 255
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


@pytest.mark.parametrize('folder', ['a/../a', 'labels'])
def test_an_image_or_the_labels_of_another_are_not_replaced(segmentor, tmp_path, folder):
    photos = [tmp_path / name / 'x.png' for name in 'ab']
    for photo, colour in zip(photos, (1, 2)):
        paint(photo, colour)
    before = photos[0].read_bytes()
    result = run(segmentor, *photos, *SIZE, '--out', tmp_path / folder)
    assert result.returncode == 2 and 'x.png is already one of the images' in result.stderr
    assert photos[0].read_bytes() == before
    if folder == 'labels':
        assert (np.asarray(Image.open(tmp_path / 'labels/x.png')) == 1).all()


def test_a_photo_of_a_phone_is_seen_upright(segmentor, tmp_path):
    mmcv = pytest.importorskip('mmcv')
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    photo = tmp_path / 'phone.jpg'
    paint(photo, 0, 2, exif=turned, quality=95)
    result = run(segmentor, photo, *SIZE, '--out', tmp_path / 'labels')
    assert result.returncode == 0, result.stderr
    loaded = mmcv.imread(str(photo), channel_order='rgb').argmax(-1)
    assert (loaded[0] == 2).all()
    assert np.array_equal(np.asarray(Image.open(tmp_path / 'labels/phone.png')), loaded)


def test_grey_of_sixteen_bits_is_not_white(tmp_path):
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(257 * levels).save(tmp_path / 'deep.png')
    image = load_tool('tools/deployment/run_onnx.py').read_image(tmp_path / 'deep.png')
    assert np.array_equal(np.asarray(image)[..., 0], levels)
