"""Batches of sequences of one length: all samples once, few lengths together, and less to call."""

import itertools

import numpy as np
import pytest
from mmengine.dataset import DefaultSampler

from mmlaplace.lra import LengthBatchSampler, LRAPixels, LRAText
from mmlaplace.lra.storage import write_split

LENGTHS = [5 - i % 5 for i in range(43)]


@pytest.fixture(scope='module')
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp('lengths')
    write_split(root / 'train', [np.full(n, 7) for n in LENGTHS], [0] * len(LENGTHS))
    return LRAText(str(root), 'train')


def batches(dataset, **options) -> list:
    return list(LengthBatchSampler(DefaultSampler(dataset, shuffle=False), 4, **options))


def test_every_sample_comes_once_and_most_batches_have_one_length(dataset):
    found = batches(dataset)
    assert sorted(itertools.chain(*found)) == list(range(43))
    lengths = [[LENGTHS[i] for i in batch] for batch in found]
    # 43 samples of 5 lengths: 10 whole batches. The others come from the shortest on.
    assert all(len(set(one)) == 1 for one in lengths[:10]) and lengths[10] == [3, 4, 5]


@pytest.mark.parametrize('drop_last', [False, True])
def test_the_number_of_batches_is_known_before(dataset, drop_last):
    sampler = LengthBatchSampler(DefaultSampler(dataset), 4, drop_last=drop_last)
    found = list(sampler)
    assert len(found) == len(sampler)
    assert drop_last == all(len(batch) == 4 for batch in found)


def test_a_width_puts_neighbouring_lengths_together(dataset):
    groups = [{(LENGTHS[i] - 1) // 2 for i in batch} for batch in batches(dataset, width=2)]
    assert all({group} in groups for group in range(3))
    with pytest.raises(ValueError, match='width must .*got 0'):
        batches(dataset, width=0)


def test_padding_does_not_count_and_of_two_sequences_the_longer_does(tmp_path):
    write_split(tmp_path / 'train', [[0, 5, 0, 6], [1, 2, 3, 4]], [0], rows=np.array([[0, 1]]))
    write_split(tmp_path / 'val', [[0, 5, 0, 6]], [0])
    assert LRAText(str(tmp_path), 'train').length(0) == 4
    assert LRAText(str(tmp_path), 'train', max_length=3).length(0) == 3
    assert LRAPixels(str(tmp_path), 'val', black_is_padding=True).length(0) == 2
