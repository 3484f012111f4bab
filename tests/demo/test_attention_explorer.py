"""The explorer draws exact rows, keeps its view in the address, and takes images of anybody."""

import json
import os
import re
from dataclasses import astuple, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, micro_config
from explorer.cards import cards
from explorer.images import MOST_PIXELS, Images, fitted, read_image
from explorer.models import Models, compared, from_config, quick_start, untrained
from explorer.pictures import exported
from explorer.rows import Explorer
from explorer.view import View
from mmengine.registry import MODELS
from PIL import Image

from mmlaplace.analysis.attention_rows import row_statistics
from mmlaplace.analysis.attention_statistics import statistics_of
from mmlaplace.analysis.recording import attention_matrix, mixed_by, normalized
from mmlaplace.lab.side_by_side.attention_study import backbone_cfg, candidates
from mmlaplace.models import BaseAttention

LAPLACIAN = micro_config('laplacianformer')
SMALL = View(size=64, stage=0, attention=('LaplacianAttention', 'PolaAttention'))


@pytest.fixture(scope='module')
def explorer():
    images = Images()
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    images.photos['astronaut'] = Image.fromarray(pixels)
    return Explorer(images, Models())


@pytest.fixture
def checkpoint(tmp_path):
    """Weights of LaplacianAttention on laplacianformer, as a classifier's checkpoint has them."""
    torch.manual_seed(1)
    backbone = MODELS.build(untrained('LaplacianAttention', 'laplacianformer').backbone)
    weights = {f'backbone.{name}': value for name, value in backbone.state_dict().items()}
    torch.save(dict(state_dict=weights), tmp_path / 'weights.pth')
    return tmp_path / 'weights.pth'


def test_a_view_is_in_its_address_and_comes_back():
    chosen = ('a b, c',), (), ('swin', 'vit'), 2, 1, 3, ('Ĝ', 'Z'), 'shared'
    view = View('cat', 96, 0.25, 0.9999, *chosen)
    assert View.from_address(view.address(), SMALL) == view
    assert View.from_address('?__theme=dark', SMALL) == SMALL
    assert View.from_address('?stage=2', SMALL) == replace(SMALL, stage=2)
    assert View.from_address('?host=vit&host=swin&host=vit', SMALL).host == ('vit', 'swin')
    almost = replace(view, x=0.99999)
    assert View.from_address(almost.address(), SMALL).x == 0.9999  # not 1, which is outside


def test_an_address_that_is_none_is_quoted():
    for wrong in ('x=1', 'y=-0.2', 'x=nan', 'x=left', 'size=5000', 'scale=log', 'stage=-1'):
        with pytest.raises(ValueError, match=wrong):
            View.from_address(wrong, SMALL)


@pytest.mark.parametrize('head', [0, 1])
def test_a_row_is_that_of_the_matrix(head, explorer, tmp_path):
    """The softmax by its formula, for the image as its config normalises it."""
    preprocessor = dict(mean=[0, 0, 0], std=[255, 255, 255], to_rgb=False)
    (tmp_path / 'bgr.py').write_text(
        f"_base_ = '{LAPLACIAN}'\ndata_preprocessor = {preprocessor}\n"
        "model = dict(backbone=dict(attn_cfg=dict(type='SoftmaxAttention', _delete_=True)))\n"
    )
    source = from_config(str(tmp_path / 'bgr.py'), None, 'bgr')
    there = Explorer(explorer.images, Models(dict(bgr=source)))
    image = normalized(explorer.images.get('astronaut'), (64, 64), preprocessor)
    recorded = mixed_by(there.models.backbone(source), BaseAttention, image)
    mixed = next(mixed for mixed in recorded if mixed.stage == 1)
    scores = mixed.q[0, head, 4 * 8 + int(0.3 * 8)] @ mixed.k[0, head].T
    expected = (scores / mixed.q.shape[-1] ** 0.5).softmax(-1).view(8, 8)
    view = replace(SMALL, attention=(), trained=('bgr',), stage=1, x=0.3, head=head)
    (panel,) = there.panels(view)
    # fp32, with the sums in another order.
    np.testing.assert_allclose(panel.weights, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.sampled(24)
@pytest.mark.parametrize('name', candidates())
def test_every_attention_has_a_row_or_a_sentence(name, explorer):
    (panel,) = explorer.panels(replace(SMALL, attention=(name,)))
    if MODELS.get(candidates()[name]['type']).mixes_tokens:
        assert panel.weights.shape == (16, 16) and panel.weights_are == 'random weights'
        found = panel.statistics
        # Shares add to one but for rounding of fp64.
        assert found.near + found.middle + found.far == pytest.approx(1, abs=1e-9)
    else:
        assert panel.weights is None and 'no map of weights to draw' in panel.message


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        (
            'classification/efficientvit/efficientvit-b3_8xb128_in1k.py',
            'has no attention; choose another stage',
        ),
        ('{}/other.py', 'is no model of this project'),
        ('lra/pathfinder_mini.py', 'has no stages'),
    ],
)
def test_a_model_without_attention_or_stages_is_told(config, message, explorer, tmp_path):
    (tmp_path / 'other.py').write_text("model = dict(backbone=dict(type='NoBackboneOfThisName'))")
    path = ROOT / 'configs' / config.format(tmp_path)
    there = Explorer(explorer.images, Models(dict(own=from_config(str(path), None, 'own'))))
    view = replace(SMALL, attention=(), trained=('own',), stage=1)
    (panel,) = there.panels(view)
    assert message in panel.message
    assert there.offered(view).stages == (4 if 'b3' in config else 1)


def test_statistics_of_rows_are_those_of_the_comparison():
    """Means over all queries and heads, of reduced keys as well."""
    cfg = backbone_cfg('laplacianformer', dict(type='SoftmaxAttention', sr_ratio=2, rope=False), 64)
    backbone = MODELS.build(cfg).eval()
    mixed = next(mixed_by(backbone, BaseAttention, torch.randn(1, 3, 32, 48)))
    matrix = attention_matrix(mixed)
    expected = statistics_of(matrix, (8, 12), (4, 6))
    found = []
    for head in matrix:
        for number, row in enumerate(head):
            weights = row.view(4, 6).repeat_interleave(2, 0).repeat_interleave(2, 1)
            found.append(row_statistics(mixed, weights, divmod(number, 12)))
    for name in ('near', 'middle', 'far', 'entropy', 'negative'):
        mean = np.mean([getattr(one, name) for one in found])
        assert mean == pytest.approx(getattr(expected, name), abs=1e-6)  # the rows are fp32


def test_matrices_are_chosen_where_there_are_several(explorer):
    for chosen, drawn in (((), ['Z', 'same signs']), (('Ĝ',), ['Ĝ', 'same signs'])):
        panels = explorer.panels(replace(SMALL, matrix=chosen))
        assert [panel.matrix for panel in panels] == drawn
    assert explorer.offered(SMALL).matrices == ('Z', 'Ĝ', 'same signs', 'opposite signs')


@pytest.mark.parametrize(
    ('chosen', 'told'),
    [
        (dict(image='upload-0123'), "no image 'upload-0123'"),
        (dict(trained=('gone',)), "no trained model 'gone'"),
        (dict(attention=('Softmax',)), "no attention 'Softmax'; choose one of Additive"),
        (dict(host=('resnet',)), "no host 'resnet'; choose one of laplacianformer"),
        (dict(host=()), 'host'),
        (dict(attention=()), 'nothing to draw'),
        (dict(attention=tuple(candidates())), 'choose 12 or fewer'),
    ],
)
def test_what_the_server_lacks_is_told(chosen, told, explorer):
    with pytest.raises(ValueError, match=told):
        explorer.panels(replace(SMALL, **chosen))


def test_a_model_without_the_place_says_which_it_has(explorer):
    for place, number in (('stage', 4), ('block', 5), ('head', 7)):
        for panel in explorer.panels(replace(SMALL, **{place: number})):
            assert panel.weights is None
            assert re.search(f'no {place} {number}; choose 0', panel.message)


def finished_run(folder, name='LaplacianAttention'):
    """Where the checkpoint of a finished run of a comparison lies."""
    run = folder / f'laplacianformer/textures/{name}_0'
    (run / 'textures').mkdir(parents=True)
    settings = dict(
        attention=name,
        attn_cfg=candidates()[name],
        seed=0,
        host='laplacianformer',
        study='textures',
        phases=[dict(data='textures', side=64, epochs=4)],
    )
    (run / 'result.json').write_text(json.dumps(dict(settings=settings)))
    (run / 'textures/epoch_4.pth').touch()
    return run / 'textures/epoch_4.pth'


def test_checkpoints_are_found_and_loaded_whole(explorer, checkpoint, tmp_path):
    checkpoint.rename(finished_run(tmp_path / 'compared'))
    half = finished_run(tmp_path / 'compared', 'PolaAttention').parents[1] / 'result.json'
    half.write_text('{"settings": {"attention": "Pola')
    with pytest.warns(UserWarning, match=re.escape(str(half))):
        ((name, source),) = compared(tmp_path / 'compared').items()
    assert name == 'LaplacianAttention on laplacianformer, textures, seed 0'
    view = replace(SMALL, trained=(name,), attention=('LaplacianAttention',))
    trained, random = Explorer(explorer.images, Models({name: source})).panels(view)
    assert trained.weights_are == 'trained on textures, seed 0'
    assert (trained.weights != random.weights).any()


def test_the_quick_start_is_found_where_it_was_moved_to(tmp_path):
    assert quick_start(tmp_path) == {}
    backbone = Models().backbone(from_config(str(LAPLACIAN), None, None))
    weights = {f'backbone.{name}': value + 1 for name, value in backbone.state_dict().items()}
    torch.save(dict(state_dict=weights), tmp_path / 'epoch_4.pth')
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/work_dirs/quickstart/epoch_4.pth')
    source = quick_start(tmp_path)['quick start']
    assert source.weights == 'trained by the quick start'
    loaded = Models().backbone(source).state_dict()
    assert all(torch.equal(loaded[n], value + 1) for n, value in backbone.state_dict().items())


def test_a_checkpoint_of_another_model_is_refused(explorer, checkpoint, tmp_path):
    models = Models()
    key = models.add(checkpoint, 'mine.pth', 'LaplacianAttention', 'laplacianformer', 64)
    assert models.sources[key].weights == 'weights of mine.pth'
    (tmp_path / 'cut.pth').write_bytes(b'PK')
    (tmp_path / 'evil.pth').write_bytes(f'cos\nmkdir\n(V{tmp_path}/ran\ntR.'.encode())
    for name, told in (('weights', 'of SoftmaxAttention on lap'), ('evil', 'could run code')):
        path = tmp_path / f'{name}.pth'
        with pytest.raises(ValueError, match=rf'{name}\.pth .* {told}'):
            models.add(path, path.name, 'SoftmaxAttention', 'laplacianformer', 64)
    assert not (tmp_path / 'ran').exists() and list(models.sources) == [key]
    # One of a list has a panel with a sentence.
    source = untrained('LaplacianAttention', 'vit')._replace(checkpoint=tmp_path / 'cut.pth')
    there = Explorer(explorer.images, Models(dict(cut=source)))
    view = replace(SMALL, trained=('cut',), attention=('LaplacianAttention',))
    broken, whole = there.panels(view)
    assert 'copy it again' in broken.message and whole.weights is not None


def test_cards_and_pictures_tell_what_the_panels_have(explorer):
    view = replace(SMALL, attention=('LaplacianAttention', 'XCAttention'), x=0.2)
    image, panels = explorer.images.get(view.image), explorer.panels(view)
    page = cards(image, panels, view, (64, 64))
    assert page.count('random weights') == 2
    assert f'entropy {panels[0].statistics.entropy:.2f}' in page
    assert 'XCAttention mixes channels' in page
    hostile = panels[0]._replace(title='<script>')
    assert '<script>' not in cards(image, [hostile], view, (64, 64))
    for scale, kind, begins in (('own', 'png', b'\x89PNG'), ('shared', 'svg', b'<?xml')):
        view = replace(view, scale=scale)
        assert exported(image, panels, view, (64, 64), kind).startswith(begins)


@pytest.mark.slow
def test_a_click_moves_the_query_and_is_in_the_address(explorer):
    page = pytest.importorskip('explorer.page', reason='no gradio', exc_type=ImportError)
    event = SimpleNamespace(index=(0.25, 0.4))
    *_, address = page.Page(explorer, SMALL).clicked(event, *astuple(SMALL))
    assert View.from_address(address, SMALL) == replace(SMALL, x=0.25, y=0.4)


def header(width, height) -> bytes:
    """Of a bitmap, which is enough, as pixels of too large ones are never read."""
    sizes = width.to_bytes(4, 'little') + height.to_bytes(4, 'little')
    return b'BM' + bytes(8) + b'\x36\0\0\0\x28\0\0\0' + sizes + b'\1\0\30\0' + bytes(24)


SIDE = int(MOST_PIXELS**0.5) + 1
# Pillow hands EPS to Ghostscript, whatever the name of the file.
EPS = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n'


@pytest.mark.parametrize(
    ('content', 'told'),
    [
        (b'no image', 'cannot be read as an image'),
        (bytes(21 * 2**20), 'has 21 MB; make it smaller, at most 20 MB'),
        (header(SIDE, SIDE), f'has {SIDE} x {SIDE} pixels'),
        (header(2**20, SIDE), 'has too many pixels'),
        (EPS, 'cannot be read as an image'),
    ],
    ids=['text', 'heavy', 'large', 'huge', 'program'],
)
def test_an_upload_that_is_no_image_or_too_large_is_refused(content, told, tmp_path, monkeypatch):
    ghostscript = tmp_path / 'gs'
    ghostscript.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran"\n')
    ghostscript.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    (tmp_path / 'a.png').write_bytes(content)
    with pytest.raises(ValueError, match=rf'^a\.png {told}'):
        read_image(tmp_path / 'a.png', 'a.png')
    assert not (tmp_path / 'ran').exists()


def test_images_keep_their_shape_and_are_known_by_their_content(tmp_path):
    images = Images()
    for number in range(34):
        Image.new('RGB', (60, 40), (number, 0, 0)).save(tmp_path / f'{number}.png')
        key = images.add(tmp_path / f'{number}.png', f'{number}.png')
    assert key == images.add(tmp_path / '33.png', 'again.png')
    assert len(images.uploads) == 32
    assert ('again.png (uploaded)', key) in images.choices()
    assert fitted(images.get(key), 224) == (160, 224)
    assert fitted(Image.new('RGB', (1000, 10)), 224) == (32, 224)
