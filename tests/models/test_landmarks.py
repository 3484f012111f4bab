"""Landmarks: as many as were asked for, whatever the map, and no option that is ignored."""

import pytest
import torch
from conftest import make_attention
from hypothesis import given, settings
from hypothesis import strategies as st

from mmlaplace.models import LaplacianAttention, SOFTAttention
from mmlaplace.models.layers import Landmarks

METHODS = ('pool', 'conv', 'random', 'first')


def made(**options):
    return Landmarks(head_dims=8, **options).eval()


@settings(deadline=None, derandomize=True, max_examples=25, database=None)
@given(
    st.tuples(st.integers(1, 13), st.integers(1, 13)), st.sampled_from((1, 4, 9, 16, 49)),
    st.integers(1, 5),
)  # fmt: skip
def test_landmarks_are_as_many_as_asked_or_a_token_each(hw_shape, count, ratio):
    height, width = hw_shape
    side = round(count**0.5)
    x = torch.randn(2, 3, height * width, 8)
    expected = min(side, height) * min(side, width)
    if 1 in hw_shape:  # a line has them all in one row
        expected = min(count, height * width)
    for options in ({}, dict(method='conv', pool_ratio=ratio)):
        assert made(num_landmarks=count, **options)(x, hw_shape).shape == (2, 3, expected, 8)
    growing = made(pool_ratio=ratio)(x, hw_shape)
    assert growing.shape == (2, 3, -(-height // ratio) * -(-width // ratio), 8)
    # Means of cells lie between the least and the greatest token.
    assert growing.max() <= x.max() + 1e-6 and growing.min() >= x.min() - 1e-6
    for method in ('random', 'first'):
        pick = made(num_landmarks=count, method=method)
        picked = pick(x, hw_shape)
        assert picked.shape[2] == min(count, height * width)
        assert torch.equal(picked, pick(x, hw_shape))
        assert picked.unique(dim=2).shape == picked.shape  # no token twice


@pytest.mark.parametrize('num_landmarks', [36, 49, 64, 81])
def test_a_pool_ratio_that_nobody_gave_divides_the_map(num_landmarks):
    side = int(num_landmarks**0.5)
    for size in (14, 28, 56):
        landmarks = make_attention(
            'SOFTAttention', (size, size), num_landmarks=num_landmarks
        ).landmarks
        # No token is repeated, and no larger ratio has that.
        assert landmarks.pool_ratio * side <= size < (landmarks.pool_ratio + 1) * side


def test_exact_landmarks_repeat_tokens_of_short_sides():
    x = torch.randn(2, 2, 3 * 9, 8)
    found = Landmarks(49, exact=True)(x, (3, 9))
    assert found.shape == (2, 2, 49, 8)
    by_hand = torch.nn.functional.adaptive_avg_pool2d(x.flatten(0, 1).mT.unflatten(2, (3, 9)), 7)
    # Sums of up to nine tokens in another order.
    torch.testing.assert_close(found, by_hand.flatten(2).mT.unflatten(0, (2, 2)))


@pytest.mark.parametrize(
    ('method', 'count'), [('pool', 9 * 11), ('conv', 8 * 10), ('random', 90), ('first', 90)]
)
def test_a_pool_ratio_alone_lets_the_number_grow_with_the_map(method, count):
    landmarks = made(method=method, pool_ratio=8)
    assert landmarks(torch.randn(1, 2, 66 * 87, 8), (66, 87)).shape == (1, 2, count, 8)


@pytest.mark.parametrize('method', ['pool', 'conv'])
def test_fixed_landmarks_are_those_of_the_pool_ratio_at_the_training_size(method):
    x = torch.randn(1, 2, 56 * 56, 8)
    growing = made(method=method, pool_ratio=8)
    fixed = made(method=method, num_landmarks=49, pool_ratio=8 if method == 'conv' else None)
    growing.load_state_dict(fixed.state_dict())
    torch.testing.assert_close(fixed(x, (56, 56)), growing(x, (56, 56)))


def test_a_map_smaller_than_the_convolution_gets_zeros():
    landmarks = made(method='conv', pool_ratio=4)
    x = torch.randn(1, 1, 2 * 3, 8)
    padded = torch.zeros(1, 8, 4, 4)
    padded[:, :, :2, :3] = x[0].mT.view(1, 8, 2, 3)
    torch.testing.assert_close(landmarks(x, (2, 3))[0], landmarks.conv(padded).flatten(2).mT)


def test_methods_take_what_their_names_say():
    x = torch.arange(2 * 36.0).view(1, 2, 36, 1).expand(-1, -1, -1, 8)
    first = made(method='first', num_landmarks=4)(x, (6, 6))
    assert first[0, 0, :, 0].tolist() == [0, 1, 2, 3]
    average = made(pool_ratio=3)(x, (6, 6))
    assert average[0, 0, :, 0].tolist() == [7, 10, 25, 28]
    border = torch.arange(5.0).view(1, 1, 5, 1)  # averages of what is there
    assert made(pool_ratio=2)(border, (1, 5)).flatten().tolist() == [0.5, 2.5, 4.0]
    random = made(method='random', num_landmarks=4)
    assert torch.equal(random(x, (6, 6)), random(x, (6, 6)))  # to evaluate is to repeat
    picks = random.train()(x, (6, 6))[0]
    assert len(picks[0, :, 0].unique()) == 4
    assert torch.equal(picks[1] - picks[0], torch.full_like(picks[0], 36))  # alike in all heads
    assert any(not torch.equal(picks, random(x, (6, 6))[0]) for _ in range(5))


@pytest.mark.parametrize(('options', 'message'), [
    (dict(method='strided'), "got 'strided'"),
    (dict(num_landmarks=50), 'square number .*, got 50'),
    (dict(method='conv', num_landmarks=50, pool_ratio=2), 'square number .*, got 50'),
    (dict(pool_ratio=0), 'got 0'),
    (dict(num_landmarks=0), 'got 0'),
    (dict(num_landmarks=4.0), 'got 4.0'),
    (dict(num_landmarks=49, pool_ratio=2), r"\(49\) or pool_ratio \(2\), not both.*'pool'"),
    (dict(method='random', num_landmarks=4, pool_ratio=2), "not both, for landmarks by 'ran"),
    (dict(method='conv', num_landmarks=49), "'conv' need pool_ratio"),
    (dict(method='conv', num_landmarks=49, pool_ratio=2, exact=True), r"'pool' \('conv'\)"),
    (dict(pool_ratio=2, exact=True), 'exact=True needs num_landmarks'),
])  # fmt: skip
def test_options_that_would_be_ignored_are_quoted(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)


def test_attentions_have_the_same_landmarks_by_the_same_options():
    for options, expected in (({}, 49), (dict(num_landmarks=16), 16), (dict(pool_ratio=4), 12)):
        for cls in (LaplacianAttention, SOFTAttention):
            attention = cls(16, 2, (14, 14), **options)
            tokens = torch.randn(1, 2, 12 * 16, 8)
            assert attention.landmarks(tokens, (12, 16)).shape[2] == expected, (cls, options)


@pytest.mark.parametrize('training', [False, True])
def test_random_landmarks_of_a_map_do_not_follow_the_default_device(training):
    x = torch.randn(1, 1, 36, 8, device='cpu')
    landmarks = made(method='random', num_landmarks=4).train(training)
    found = []
    for device in (None, 'meta'):  # as a GPU: its indices are none of the CPU's generator
        torch.set_default_device(device)
        try:
            torch.manual_seed(0)
            found.append(landmarks(x, (6, 6)))
        finally:
            torch.set_default_device(None)
    assert torch.equal(*found)
