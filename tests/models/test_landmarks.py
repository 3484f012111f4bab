"""Landmarks: as many as were asked for, whatever the map, and no option that is ignored."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmlaplace.models.layers import Landmarks


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


def test_exact_landmarks_repeat_tokens_of_short_sides():
    x = torch.randn(2, 2, 3 * 9, 8)
    found = Landmarks(49, exact=True)(x, (3, 9))
    assert found.shape == (2, 2, 49, 8)
    by_hand = torch.nn.functional.adaptive_avg_pool2d(x.flatten(0, 1).mT.unflatten(2, (3, 9)), 7)
    # Sums of up to nine tokens in another order.
    torch.testing.assert_close(found, by_hand.flatten(2).mT.unflatten(0, (2, 2)))


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
    (dict(pool_ratio=0), 'got 0'),
    (dict(num_landmarks=49, pool_ratio=2), r"\(49\) or pool_ratio \(2\), not both.*'pool'"),
    (dict(method='conv', num_landmarks=49), "'conv' need pool_ratio"),
    (dict(method='conv', num_landmarks=49, pool_ratio=2, exact=True), r"'pool' \('conv'\)"),
    (dict(pool_ratio=2, exact=True), 'exact=True needs num_landmarks'),
])  # fmt: skip
def test_options_that_would_be_ignored_are_quoted(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)
