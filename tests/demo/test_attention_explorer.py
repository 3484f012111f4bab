"""The explorer draws exact rows of every attention, keeps its view in the address, and says no."""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import ROOT, fast_with
from explorer.cards import cards
from explorer.images import Images
from explorer.models import Models, compared, from_config, quick_start, untrained
from explorer.pictures import exported
from explorer.rows import Explorer, colour_limits, default_view
from explorer.view import View
from mmengine.registry import MODELS
from PIL import Image

from mmlaplace.analysis.attention_rows import row_statistics
from mmlaplace.analysis.attention_statistics import statistics_of
from mmlaplace.analysis.recording import attention_matrix, mixed_by, normalized
from mmlaplace.comparison.attention_study import backbone_cfg, contenders
from mmlaplace.models import BaseAttention

LAPLACIAN = ROOT / 'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
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
    view = View(
        'cat', 96, 0.25, 0.9999, ('a b, c',), (), ('swin', 'vit'), 2, 1, 3, ('Ĝ', 'Z'), 'shared'
    )
    assert View.from_address(view.address(), SMALL) == view
    assert View.from_address('', SMALL) == SMALL
    assert View.from_address('?__theme=dark', SMALL) == SMALL
    assert View.from_address('?stage=2', SMALL) == replace(SMALL, stage=2)
    assert View.from_address('?host=vit&host=swin&host=vit', SMALL).host == ('vit', 'swin')
    almost = replace(view, x=0.99999)
    assert View.from_address(almost.address(), SMALL).x == 0.9999  # not 1, which is outside


@pytest.mark.parametrize(
    ('address', 'told'),
    [
        ('x=1', 'x=1 is outside'), ('y=-0.2', 'y=-0.2 is outside'), ('x=nan', 'x=nan is outside'),
        ('x=left', 'x=left in the address is not'), ('size=5000', 'size=5000 is not offered'),
        ('scale=log', 'scale=log is unknown'), ('stage=-1', 'stage=-1 is too small'),
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_quoted(address, told):
    with pytest.raises(ValueError, match=told):
        View.from_address(address, SMALL)


def test_rows_are_those_of_the_matrix(explorer):
    """The softmax by its formula, for each head."""
    source = untrained('SoftmaxAttention', 'vit')
    image = normalized(explorer.images.get('astronaut'), (64, 64))
    *_, mixed = mixed_by(explorer.models.backbone(source), BaseAttention, image)
    query = 8 * 16 + int(0.3 * 16)
    scores = mixed.q[0, :, query, None] @ mixed.k[0].transpose(-2, -1)
    expected = (scores / mixed.q.shape[-1] ** 0.5).softmax(-1).view(2, 16, 16)
    for head in (0, 1):
        view = replace(SMALL, attention=('SoftmaxAttention',), host=('vit',), x=0.3, head=head)
        (panel,) = explorer.panels(view)
        # fp32, with the sums in another order.
        np.testing.assert_allclose(panel.weights, expected[head], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize('name', fast_with(contenders(), 'SOFTAttention', 'XCAttention'))
def test_every_attention_has_a_row_or_a_sentence(name, explorer):
    (panel,) = explorer.panels(replace(SMALL, attention=(name,)))
    assert panel.weights_are == 'random weights'
    if MODELS.get(contenders()[name]['type']).mixes_tokens:
        assert panel.weights.shape == (16, 16)
        found = panel.statistics
        # Shares add to one but for rounding of fp64; entropy of 256 keys is at most one.
        assert found.near + found.middle + found.far == pytest.approx(1, abs=1e-9)
        assert 0 <= found.entropy <= 1 + 1e-9
    else:
        assert panel.weights is None
        assert 'no map of weights to draw; choose another attention' in panel.message


def test_windows_and_other_hosts_have_rows(explorer):
    panels = explorer.panels(
        replace(SMALL, size=96, attention=('SoftmaxAttention',), host=('swin', 'vit'))
    )
    windows, whole = (panel.weights for panel in panels)
    assert windows.shape == whole.shape == (24, 24)
    assert np.isnan(windows).any()
    assert not np.isnan(whole).any()


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
    def drawn(*names):
        return [panel.matrix for panel in explorer.panels(replace(SMALL, matrix=names))]

    assert drawn() == ['Z', 'same signs']
    assert drawn('Ĝ') == ['Ĝ', 'same signs']
    assert drawn('Z', 'Ĝ', 'opposite signs') == ['Z', 'Ĝ', 'opposite signs']
    assert explorer.offered(SMALL).matrices == ('Z', 'Ĝ', 'same signs', 'opposite signs')
    z, g = explorer.panels(replace(SMALL, attention=('LaplacianAttention',), matrix=('Z', 'Ĝ')))
    assert np.abs(z.weights - g.weights).max() > 0.1 * np.abs(g.weights).max()


@pytest.mark.parametrize(
    ('chosen', 'told'),
    [
        (dict(stage=4), 'there is no stage 4; choose 0 to 3'),
        (dict(block=5), 'stage 0 has no block 5; choose 0'),
        (dict(head=7), 'stage 0 has no head 7; choose 0'),
    ],
)
def test_a_model_without_the_place_says_which_it_has(chosen, told, explorer):
    for panel in explorer.panels(replace(SMALL, **chosen)):
        assert panel.weights is None and told in panel.message


@pytest.mark.parametrize(
    ('chosen', 'told'),
    [
        (dict(image='upload-0123'), "no image 'upload-0123'"),
        (dict(trained=('gone',)), "no trained model 'gone'"),
        (dict(attention=('Softmax',)), "no attention 'Softmax'; choose one of Additive"),
        (dict(host=('resnet',)), "no host 'resnet'; choose one of laplacianformer"),
        (dict(host=()), 'the attentions need a host'),
        (dict(attention=()), 'nothing to draw'),
        (dict(attention=tuple(contenders())), 'choose 12 or fewer'),
    ],
)
def test_what_the_server_lacks_is_told(chosen, told, explorer):
    with pytest.raises(ValueError, match=told):
        explorer.panels(replace(SMALL, **chosen))


def test_colours_are_scaled_alone_or_together(explorer):
    panels = explorer.panels(replace(SMALL, attention=('LaplacianAttention', 'XCAttention')))
    panels = [*panels, panels[0]._replace(weights=panels[0].weights * 3)]
    first, _, last = colour_limits(panels, 'own')
    assert last == pytest.approx((3 * first[0], 3 * first[1]))
    shared = colour_limits(panels, 'shared')
    assert set(shared) == {(min(first[0], last[0]), max(first[1], last[1]))}


def test_a_click_computes_rows_and_nothing_anew(explorer, monkeypatch):
    explorer.panels(SMALL)
    monkeypatch.setattr('explorer.rows.mixed_by', None)  # would raise
    monkeypatch.setattr('explorer.models.build', None)
    before, after = (explorer.panels(replace(SMALL, x=x)) for x in (0.1, 0.9))
    assert (before[0].weights != after[0].weights).any()


def test_random_weights_are_the_same_each_time_and_where_several_ask_at_once():
    """A checkpoint that is added is built beside the views of others."""
    sources = [untrained('LaplacianAttention', 'vit', side) for side in (64, 96, 128, 160)]
    alone = [Models().backbone(source).state_dict() for source in sources]
    models = Models()
    with ThreadPoolExecutor(4) as pool:
        together = [backbone.state_dict() for backbone in pool.map(models.backbone, sources)]
    for first, again in zip(alone, together):
        assert all(torch.equal(first[name], again[name]) for name in first)


def finished_run(folder, name='LaplacianAttention'):
    """Where the checkpoint of a finished run of a comparison lies."""
    run = folder / f'laplacianformer/textures/{name}_0'
    (run / 'textures').mkdir(parents=True)
    settings = dict(
        attention=name, attn_cfg=contenders()[name], seed=0, host='laplacianformer',
        study='textures', phases=[dict(data='textures', side=64, epochs=4)],
    )  # fmt: skip
    (run / 'result.json').write_text(json.dumps(dict(settings=settings)))
    (run / 'textures/epoch_4.pth').touch()
    return run / 'textures/epoch_4.pth'


def test_checkpoints_are_found_and_loaded_whole(explorer, checkpoint, tmp_path):
    checkpoint.rename(finished_run(tmp_path / 'compared'))
    ((name, source),) = compared(tmp_path / 'compared').items()
    assert name == 'LaplacianAttention on laplacianformer, textures, seed 0'
    trained, random = Explorer(explorer.images, Models({name: source})).panels(
        replace(SMALL, trained=(name,), attention=('LaplacianAttention',))
    )
    assert trained.weights_are == 'trained on textures, seed 0'
    assert (trained.weights != random.weights).any()


@pytest.mark.parametrize(
    'content',
    [b'', b'{"settings": {"attention": "Lap', b'{}', b'[]', b'{"settings": null}', b'\xff'],
)
def test_a_half_written_result_is_left_out_and_the_others_are_found(content, tmp_path):
    half = finished_run(tmp_path).parents[1] / 'result.json'
    finished_run(tmp_path, 'PolaAttention')
    half.write_bytes(content)
    with pytest.warns(
        UserWarning, match=f'{re.escape(str(half))} is not a complete .*left out'
    ):
        found = compared(tmp_path)
    assert list(found) == ['PolaAttention on laplacianformer, textures, seed 0']


def test_the_quick_start_is_found_where_it_was_moved_to(tmp_path):
    assert quick_start(tmp_path) == {}
    torch.manual_seed(1)
    backbone = Models().backbone(from_config(str(LAPLACIAN), None, None))
    weights = {f'backbone.{name}': value + 1 for name, value in backbone.state_dict().items()}
    torch.save(dict(state_dict=weights), tmp_path / 'epoch_4.pth')
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/work_dirs/quickstart/epoch_4.pth')
    ((name, source),) = quick_start(tmp_path).items()
    assert (name, source.weights) == ('quick start', 'trained by the quick start')
    loaded = Models().backbone(source).state_dict()
    assert all(torch.equal(loaded[n], value + 1) for n, value in backbone.state_dict().items())


def test_a_view_begins_with_what_was_given_or_trained(explorer):
    assert default_view(explorer).attention[0] == 'LaplacianAttention'
    assert default_view(explorer, ['mine']).trained == ('mine',)
    assert default_view(explorer, ['mine']).attention == ()
    source = untrained('SoftmaxAttention', 'vit')
    names = ['quick start', 'SoftmaxAttention on vit, textures, seed 0']
    found = default_view(Explorer(explorer.images, Models(dict.fromkeys(names, source))))
    assert found.trained == tuple(names)
    assert found.attention == ('LaplacianAttention', 'PolaAttention')


class Evil:
    """Unpickling it makes a folder."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


def test_a_checkpoint_of_another_model_is_refused(explorer, checkpoint, tmp_path):
    models = Models()
    key = models.add(checkpoint, 'mine.pth', 'LaplacianAttention', 'laplacianformer', 64)
    assert models.sources[key].weights == 'weights of mine.pth'
    weights = torch.load(checkpoint, weights_only=True)
    weights['state_dict']['backbone.norm3.weight'][0] = float('nan')
    torch.save(weights, tmp_path / 'nan.pth')
    (tmp_path / 'text.pth').write_text('no checkpoint')
    (tmp_path / 'cut.pth').write_bytes(b'PK')
    torch.save(dict(state_dict=dict(a=Evil(tmp_path / 'ran'))), tmp_path / 'evil.pth')
    for name, attention, told in (
        (
            'weights',
            'SoftmaxAttention',
            r'^weights\.pth is not a checkpoint of SoftmaxAttention on lap',
        ),
        ('nan', 'LaplacianAttention', r'^nan\.pth .*NaN or infinite '),
        ('text', 'LaplacianAttention', r'text\.pth .*download or copy it again'),
        ('evil', 'LaplacianAttention', r'^evil\.pth .*could run code'),
    ):
        path = tmp_path / f'{name}.pth'
        with pytest.raises(ValueError, match=told):
            models.add(path, path.name, attention, 'laplacianformer', 64)
    assert not (tmp_path / 'ran').exists()
    assert list(models.sources) == [key]
    # One of a list has a panel with a sentence.
    source = untrained('LaplacianAttention', 'vit')._replace(checkpoint=tmp_path / 'cut.pth')
    there = Explorer(explorer.images, Models(dict(cut=source)))
    view = replace(SMALL, trained=('cut',), attention=('LaplacianAttention',))
    broken, whole = there.panels(view)
    assert 'download or copy it again' in broken.message
    assert whole.weights is not None and there.offered(view).stages == 4


def test_cards_and_pictures_tell_what_the_panels_have(explorer):
    view = replace(SMALL, attention=('LaplacianAttention', 'XCAttention'), x=0.2)
    image, panels = explorer.images.get(view.image), explorer.panels(view)
    page = cards(image, panels, view, (64, 64))
    assert page.count('<img class="ask"') == page.count('random weights') == 2
    assert f'entropy {panels[0].statistics.entropy:.2f}' in page
    assert 'XCAttention mixes channels' in page
    hostile = panels[0]._replace(title='<script>')
    assert '<script>' not in cards(image, [hostile], view, (64, 64))
    for scale, kind, begins in (('own', 'png', b'\x89PNG'), ('shared', 'svg', b'<?xml')):
        view = replace(view, scale=scale)
        assert exported(image, panels, view, (64, 64), kind).startswith(begins)


def test_a_number_in_an_address_makes_no_list_of_that_length(explorer):
    page = pytest.importorskip('explorer.page', reason='no gradio', exc_type=ImportError)
    assert page.numbered(2, 10**12) == [('0', 0), ('1', 1), (f'{10**12}', 10**12)]
    assert page.numbered(2, -1, [('last', -1)]) == [('last', -1), ('0', 0), ('1', 1)]
    shown = page.Page(explorer, SMALL).opened(f'?attention=SoftmaxAttention&size=64&head={10**12}')
    assert f'has no head {10**12}' in ''.join(text for text in shown if isinstance(text, str))
