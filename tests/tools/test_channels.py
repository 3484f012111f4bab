"""Models of grey images, of four bands and of thirteen, through the tools."""

import json

import numpy as np
import pytest
import torch
from conftest import ROOT, load_tool, output_of, run_script
from mmengine.config import Config
from PIL import Image

from mmlaplace.deployment.deployable import NotDeployableError
from mmlaplace.deployment.image_pipeline import read_image
from mmlaplace.deployment.toolbox_pipeline import check_channels
from mmlaplace.deployment.verification import photograph_files
from mmlaplace.model_zoo import build_model

BASE = ROOT / 'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
LOADERS = {
    1: dict(color_type='grayscale'),
    4: dict(color_type='unchanged'),
    13: dict(color_type='unchanged', imdecode_backend='tifffile'),
}
NAMES = [f'thing {number}' for number in range(10)]
channels_of_images = pytest.mark.parametrize('channels', LOADERS)


@pytest.fixture
def files(tmp_path):
    """Write the config of a model, its weights and an image; returns their paths."""
    pytest.importorskip('mmpretrain')

    def write(channels: int) -> tuple:
        config, checkpoint = tmp_path / 'config.py', tmp_path / 'weights.pth'
        loader = dict(type='LoadImageFromFile', **LOADERS[channels])
        steps = [loader, dict(type='Resize', scale=48), dict(type='PackInputs')]
        config.write_text(
            f'_base_ = {str(BASE)!r}\n'
            # Which is exported in less time than LaplacianAttention.
            f'model = dict(backbone=dict(in_channels={channels}, attn_cfg=dict(_delete_=True, '
            'type="SoftmaxAttention")))\n'
            f'data_preprocessor = dict(mean=[120.0] * {channels}, std=[50.0] * {channels}, '
            'to_rgb=False)\n'
            f'loader = dict(dataset=dict(pipeline={steps!r}))\n'
            'train_dataloader = val_dataloader = test_dataloader = loader\n'
        )
        torch.manual_seed(0)
        model = build_model(Config.fromfile(config))
        model.head.fc.weight.data *= 10  # random ones find all classes alike
        meta = dict(dataset_meta=dict(classes=NAMES))
        torch.save(dict(state_dict=model.state_dict(), meta=meta), checkpoint)
        return config, checkpoint, image_of(channels, tmp_path)

    return write


def image_of(channels: int, folder):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 70, channels), np.uint8)
    if channels == 13:
        tifffile = pytest.importorskip('tifffile')
        path = folder / 'image.tif'
        tifffile.imwrite(path, pixels, photometric='minisblack', planarconfig='contig')
        return path
    Image.fromarray(pixels.squeeze()).save(folder / 'image.png')
    return folder / 'image.png'


@channels_of_images
def test_models_are_counted_estimated_timed_and_run_dry_with_their_channels(
    channels, files, tmp_path, monkeypatch
):
    config, *_ = files(channels)
    flops = ROOT / 'tools/analysis_tools/get_flops.py'
    rows = []
    for option in ('--attention-term', '--memory'):
        written = tmp_path / f'{option}.json'
        output_of(flops, config, '--image-size', 48, option, '--out', written)
        rows += json.loads(written.read_text())['rows']
    assert rows[0]['macs'] > 0 and rows[0]['attention_terms'] and rows[1]['activations'] > 0
    benchmark = ROOT / 'tools/benchmarks/benchmark_backbone.py'
    words = ('laplacianformer-micro', '--image-size', 48, '--rounds', 1, '--out', tmp_path / 'time')
    output_of(benchmark, config, *words)
    measured = json.loads((tmp_path / 'time').read_text())
    assert [row['failure'] for row in measured['rows']] == ['', '']
    dry = ('--random-images', '--image-size', 48, 48, '--here', '--work-dir', tmp_path)
    output_of(ROOT / 'tools/dry_run.py', config, *dry)
    assert json.loads((tmp_path / 'passed.json').read_text())['loss'] > 0


@channels_of_images
def test_images_are_read_with_their_channels_where_they_are_predicted(channels, files, tmp_path):
    config, checkpoint, image = files(channels)
    cfg = Config.fromfile(config)
    model = build_model(cfg).eval()
    model.load_state_dict(torch.load(checkpoint)['state_dict'])
    color = 'tifffile' if channels == 13 else LOADERS[channels]['color_type']
    pixels = read_image(image, color)
    assert pixels.shape == ((60, 70) if channels == 1 else (60, 70, channels))

    said = run_script(
        ROOT / 'demo/image_demo.py', image, config, checkpoint, '--out-dir', tmp_path / 'out'
    )
    assert said.returncode == 0, said.stdout + said.stderr
    scores = json.loads((tmp_path / 'out/preds/image.json').read_text())['pred_scores']
    import cv2

    resized = cv2.resize(pixels, (48, 48), interpolation=cv2.INTER_LINEAR).reshape(48, 48, channels)
    batch = torch.from_numpy(resized.transpose(2, 0, 1)[None].copy())
    data = model.data_preprocessor(dict(inputs=batch))
    expected = model(**data, mode='tensor').softmax(-1)[0].tolist()
    # A decoder and a resizer of whole numbers: both give the same pixels.
    assert scores == pytest.approx(expected, abs=1e-5)
    assert Image.open(tmp_path / 'out/vis/image.png').mode == 'RGB'


def test_files_that_do_not_fit_a_model_are_refused():
    for channels, color in ((3, 'color'), (1, 'grayscale'), (4, 'unchanged'), (13, 'tifffile')):
        check_channels(channels, color)
    for channels, color, wanted in (
        (4, 'color', 'unchanged'),
        (1, 'color', 'grayscale'),
        (3, 'grayscale', 'color'),
    ):
        with pytest.raises(NotDeployableError, match=f"in_channels={channels}.*'{wanted}' there"):
            check_channels(channels, color)
    about = dict(mean=[0.0] * 13, color='unchanged', size=None)
    with pytest.raises(ValueError, match="takes 13 channels.*imdecode_backend='tifffile'"):
        photograph_files(ROOT, about)


def test_three_bands_of_an_image_are_drawn(tmp_path):
    demo = load_tool('demo/image_demo.py')
    bands = np.arange(4 * 5 * 6, dtype=np.uint16).reshape(4, 5, 6) + 1000
    picture = np.asarray(demo.first_bands(bands))
    assert picture.shape == (4, 5, 3) and (picture[0, 0, 0], picture[-1, -1, 2]) == (0, 255)
    two = np.asarray(demo.first_bands(np.full((4, 5, 2), 7, np.uint8)))
    assert two.shape == (4, 5, 3) and (two == 7).all()


@pytest.mark.skipif(not hasattr(torch.export, 'Dim'), reason='torch.export has no sizes')
@channels_of_images
def test_an_exported_file_predicts_what_the_toolbox_does(channels, files, tmp_path):
    config, checkpoint, _ = files(channels)
    tool = ROOT / 'tools/deployment/export.py'
    words = ('--format', 'pt2', '--out', tmp_path / 'model.pt2', '--verify')
    report = json.loads(output_of(tool, config, checkpoint, *words))
    assert len(report['about']['mean']) == channels and report['about']['classes'] == NAMES
    assert report['deployed']['images'] == 3 and not report['deployed']['beyond_tolerance']
