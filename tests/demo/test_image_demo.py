"""demo/image_demo.py: what each task writes, and the sentence for each bad input."""

import functools
import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest import mock

import image_demo
import numpy as np
import pytest
import torch
from conftest import ROOT, micro_config, quiet_init, run_script, toolbox_config, toolbox_model
from PIL import Image

MODELS = dict(mmpretrain='laplacianformer', mmdet='mask-rcnn', mmseg='semantic-fpn')
SIZE = (40, 56)  # of the images, in pixels


def config(toolbox) -> str:
    return str(micro_config(MODELS[toolbox]))


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
    """A checkpoint of random weights for each toolbox, made when it is asked for."""
    folder = tmp_path_factory.mktemp('weights')

    @functools.cache
    def checkpoint(toolbox) -> str:
        model = toolbox_model(toolbox_config(config(toolbox)))
        model.backbone.init_cfg = None
        quiet_init(model)
        names = [f'thing{i}' for i in range(11 if toolbox == 'mmseg' else 10)]
        # Fewer colours than classes, as where the data set was changed.
        meta = dict(dataset_meta=dict(CLASSES=names, palette=[(9, 99, 200)] * 3))
        torch.save(dict(state_dict=model.state_dict(), meta=meta), folder / f'{toolbox}.pth')
        return str(folder / f'{toolbox}.pth')

    return checkpoint


@pytest.fixture
def photos(tmp_path):
    """A folder with two images of one name, a damaged image, and a text file."""
    folder = tmp_path / 'photos'
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ('a.png', 'a.jpg'):
        Image.fromarray(rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).save(folder / name)
    (folder / 'broken.jpg').write_bytes((folder / 'a.jpg').read_bytes()[:900])
    (folder / 'notes.txt').write_text('not an image')
    return folder


@pytest.fixture
def demo(tmp_path, monkeypatch, weights):
    """Run the demo in this process; what it said and its exit status."""

    def demo(images, toolbox, *options):
        return run(images, config(toolbox), weights(toolbox), '--device', 'cpu', *options)

    monkeypatch.chdir(tmp_path)
    return demo


def run(*arguments) -> tuple:
    result = run_script(ROOT / 'demo/image_demo.py', *arguments)
    return result.stdout + result.stderr, result.returncode


def written(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob('*') if p.is_file())


def test_a_folder_of_images_is_classified_but_for_what_is_no_image(demo, photos, tmp_path):
    said, status = demo(photos, 'mmpretrain')
    out = tmp_path / 'outputs'
    names = 'preds/a.jpg.json', 'preds/a.png.json', 'vis/a.jpg.png', 'vis/a.png.png'
    assert written(out) == [*names]
    result = json.loads((out / 'preds/a.png.json').read_text())
    scores = result['pred_scores']
    assert (len(scores), sum(scores)) == (10, pytest.approx(1, abs=1e-5))  # ten rounded to fp32
    assert result['pred_label'] == int(np.argmax(scores))
    assert result['pred_class'] == f'thing{result["pred_label"]}'
    assert f'a.png: {result["pred_class"]} (' in said
    assert status and 'broken.jpg' in said and '1 of 3 images were left out' in said
    assert Image.open(out / 'vis/a.png.png').size == SIZE[::-1]


def test_no_image_starts_ghostscript(demo, photos, monkeypatch):
    started = mock.Mock(side_effect=OSError)
    monkeypatch.setattr('PIL.EpsImagePlugin.Ghostscript', started)
    for path in photos.iterdir():
        Image.new('RGB', SIZE).save(path, 'EPS')
    said, status = demo(photos, 'mmpretrain')
    assert 'a.png cannot be read as an image' in said and status
    assert not started.called


def test_an_image_by_its_address_and_options_of_classification(demo, photos, tmp_path):
    address, options = (photos / 'a.png').as_uri(), ('--resize', 80, '--no-save-pred')
    said, status = demo(address, 'mmpretrain', *options, '--out-dir', 'elsewhere/here')
    assert status == 0, said
    assert written(tmp_path / 'elsewhere/here') == ['vis/a.png']
    # The shorter side is the one that was asked for, and 56 / 40 of it the other.
    assert Image.open(tmp_path / 'elsewhere/here/vis/a.png').size == (112, 80)


class Handler(BaseHTTPRequestHandler):
    """Gives the same bytes for every path."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'bytes')


@pytest.mark.parametrize(
    ('path', 'name'),
    [
        ('/a/caf%C3%A9%20au%20lait.png?size=2', 'café au lait'),
        ('/', 'image'),
        ('/x%00%0Ay.png', 'x--y'),
        ('/%2e%2e%2f..%2fetc%2fpasswd', 'passwd'),
        (f'/{"%C3%A9" * 300}.png', f'{"é" * 95}-7250b666'),
    ],
)
def test_an_address_of_any_path_gives_a_result_beside_the_others(path, name, tmp_path):
    with HTTPServer(('127.0.0.1', 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = f'http://127.0.0.1:{server.server_port}{path}'
        photo = image_demo.downloaded(address, tmp_path)
    assert photo.name == name
    assert photo.path.parent == tmp_path and photo.path.read_bytes() == b'bytes'


@pytest.mark.slow
def test_a_detector_draws_what_is_above_the_threshold(demo, photos, tmp_path, monkeypatch):
    show, pictures = mock.Mock(), []
    monkeypatch.setattr('matplotlib.pyplot.get_backend', lambda: 'TkAgg')
    monkeypatch.setattr('mmengine.visualization.Visualizer.show', show)
    for threshold in (0.99, 0.01):  # a random head gives scores between them
        options = ('--cfg-options', 'model.test_cfg.rcnn.score_thr=0.01', '--show')
        said, status = demo(photos / 'a.png', 'mmdet', *options, '--pred-score-thr', threshold)
        assert status == 0, said
        assert ('nothing above' in said) == (threshold == 0.99)
        pictures.append(np.asarray(Image.open(tmp_path / 'outputs/vis/a.png')))
    assert written(tmp_path / 'outputs') == ['preds/a.json', 'vis/a.png']
    assert show.call_count == 2
    assert pictures[0].shape == pictures[1].shape == (*SIZE, 3)
    assert (pictures[0] != pictures[1]).any()
    result = json.loads((tmp_path / 'outputs/preds/a.json').read_text())
    assert len({len(result[name]) for name in ('scores', 'bboxes', 'masks', 'classes')}) == 1
    assert result['classes'] == [f'thing{label}' for label in result['labels']]
    assert result['masks'][0]['size'] == list(SIZE)


@pytest.mark.slow
def test_a_segmentor_writes_labels_and_shares_and_draws_by_the_opacity(demo, photos, tmp_path):
    pictures = []
    for opacity in (0.1, 0.9):
        said, status = demo(photos / 'a.png', 'mmseg', '--opacity', opacity)
        assert status == 0, said
        pictures.append(np.asarray(Image.open(tmp_path / 'outputs/vis/a.png')).astype(int))
    assert written(tmp_path / 'outputs') == ['preds/a.json', 'preds/a.png', 'vis/a.png']
    labels = np.asarray(Image.open(tmp_path / 'outputs/preds/a.png'))
    assert labels.shape == SIZE
    shares = json.loads((tmp_path / 'outputs/preds/a.json').read_text())['shares']
    expected = {f'thing{i}': (labels == i).mean() for i in np.unique(labels)}
    assert shares == pytest.approx(expected)
    pixels = np.asarray(Image.open(photos / 'a.png')).astype(int)
    faint, strong = (np.abs(picture - pixels).mean() for picture in pictures)
    assert 0 < faint < strong


@pytest.mark.parametrize(
    ('arguments', 'expected'),
    [
        ('none.png - -', 'none.png; check the path'),
        ('photos none.py -', 'none.py; check the path'),
        ('photos/notes.txt - -', 'notes.txt .*image'),
        ('empty - -', r'empty has no images; it takes \.bmp'),
        ('photos half.py -', "half.py .* default_scope is 'mmyolo'"),
        ('photos photos/a.png -', 'a.png cannot be read as a config .*images come first'),
        ('photos - other.pth', r'other\.pth does not fit: only 1 of'),
        (f'{"n" * 300} - -', 'nnn.*; check the path'),
        ('http://[/a.png - -', r'http://\[/a.png cannot be opened .*; check the address'),
        ('http://127.0.0.1:9/a.png - -', 'a.png cannot be opened .*refused.*; check the'),
        ('photos - - --opacity nan', '--opacity nan is outside of 0 to 1'),
        ('photos - - --out-dir half.py', '--out-dir half.py is a file'),
        ('photos - - --opacity 1', '--opacity is for configs of mmseg'),
        ('photos - - --device gpu', '--device gpu does not work here .*--device cpu'),
        ('photos - - --show', '--show needs a screen'),
    ],
)
@pytest.mark.usefixtures('demo', 'photos')  # in their folder
def test_each_bad_input_gets_a_sentence(arguments, expected, weights, tmp_path):
    (tmp_path / 'empty').mkdir()
    torch.save({'head.fc.bias': torch.zeros(10)}, tmp_path / 'other.pth')
    (tmp_path / 'half.py').write_text("default_scope = 'mmyolo'\ntest_dataloader = dict()\n")
    image, cfg, checkpoint, *options = arguments.split()
    cfg = config('mmpretrain') if cfg == '-' else cfg
    checkpoint = weights('mmpretrain') if checkpoint == '-' else checkpoint
    said, status = run(image, cfg, checkpoint, *(options or ['--device', 'cpu']))
    assert status and re.search(expected, said), said
    assert not (tmp_path / 'outputs').exists()


@pytest.mark.parametrize('inputs', ['vis', 'vis/a.png'])
def test_results_never_replace_the_images(demo, photos, tmp_path, inputs):
    shutil.copytree(photos, tmp_path / 'mine/vis')
    said, status = demo(f'mine/{inputs}', 'mmpretrain', '--out-dir', 'mine/../mine')
    assert status == 2 and 'would replace images' in said
    assert (tmp_path / 'mine/vis/a.png').read_bytes() == (photos / 'a.png').read_bytes()


def test_an_image_that_needs_too_much_memory_is_left_out(demo, photos, tmp_path):
    from mmpretrain import ImageClassificationInferencer as Inferencer

    too_large, forward = RuntimeError('CUDA out of memory. Tried 20.00 GiB.'), Inferencer.forward
    one_fails = mock.Mock(side_effect=[too_large, mock.DEFAULT, mock.DEFAULT])

    def forward_or_fail(self, data):
        return one_fails() and forward(self, data)

    with mock.patch.object(Inferencer, 'forward', forward_or_fail):
        said, status = demo(photos, 'mmpretrain', '--no-save-vis')
    assert 'a.jpg needs more memory than there is (CUDA out of memory' in said
    assert status and '2 of 3' in said
    assert written(tmp_path / 'outputs') == ['preds/a.png.json']
