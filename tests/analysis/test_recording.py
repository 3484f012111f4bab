"""Recording what attentions mix changes nothing, and photographs are normalised."""

import pytest
import torch
from conftest import CLASSIFICATION
from PIL import Image

from mmlaplace.analysis.recording import MEAN, STD, mixed_by, normalized, photographs, steps_watched
from mmlaplace.commands.command_line import build_backbone
from mmlaplace.models import BaseAttention, LaplacianAttention, WindowAttention


@pytest.fixture
def micro():
    config = CLASSIFICATION / 'laplacianformer/laplacianformer-micro_1xb32_mini.py'
    return build_backbone(config), torch.randn(1, 3, 40, 48)


def assert_in_order(found, backbone):
    places = [(i, j) for i, s in enumerate(backbone.stages) for j in range(len(s['blocks']))]
    assert [(mixed.stage, mixed.block) for mixed in found] == places


def test_every_attention_is_recorded_in_order_and_left_as_it_was(micro):
    backbone, image = micro
    before = backbone(image)
    found = list(mixed_by(backbone, LaplacianAttention, image))
    assert_in_order(found, backbone)
    assert found[0].hw_shape == found[0].map_shape == (10, 12)
    assert found[0].q.shape[2] == 120
    assert not any('mix' in vars(mixed.attention) for mixed in found)
    assert all(map(torch.equal, before, backbone(image)))


def test_recordings_inside_of_recordings_and_methods_of_ones_own_come_back(micro):
    backbone, image = micro
    attention, calls, seen = backbone.stages[0]['blocks'][0].attn, [], []
    mix = attention.mix
    attention.mix = own = lambda *args: calls.append(args) or mix(*args)
    watch = steps_watched(
        backbone, LaplacianAttention, ('mix',), lambda name, *_: seen.append(name)
    )
    with watch:
        found = list(mixed_by(backbone, LaplacianAttention, image))
    assert len(seen) == len(found) and len(calls) == 1
    assert vars(attention)['mix'] is own
    assert sum('mix' in vars(mixed.attention) for mixed in found) == 1


def test_attentions_in_windows_tell_the_map_around_them():
    config = CLASSIFICATION / 'polaformer/polaformer-swin-micro_1xb32_mini.py'
    (first, *_) = mixed_by(build_backbone(config), BaseAttention, torch.randn(1, 3, 48, 48))
    assert isinstance(first.outer, WindowAttention)
    assert first.map_shape == (12, 12)
    assert first.hw_shape[0] <= 12


def test_photographs_are_of_the_size_asked_for_and_normalised():
    white = normalized(Image.new('RGB', (30, 20), 'white'), (8, 16))
    assert white.shape == (1, 3, 8, 16)
    expected = (255 - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(white[0, :, 3, 3], expected)
    pytest.importorskip('skimage')
    assert [photo.shape for photo in photographs((32, 48))] == [(1, 3, 32, 48)] * 3
