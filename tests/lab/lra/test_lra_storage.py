"""Folders of data sets are made whole or not at all; batches have sequences of one length."""

import itertools

import numpy as np
import pytest
from mmengine.dataset import DefaultSampler

from mmlaplace.lab.lra import LengthBatchSampler, LRAPixels, LRAText
from mmlaplace.lab.lra.storage import make_folder, write_split


@pytest.mark.parametrize('cut_off', [b'', b'{"se', b'\xff'])
def test_a_record_that_was_cut_off_is_one_sentence_and_force_mends_it(tmp_path, cut_off):
    for name in ('data', 'data.partial'):  # as kills while they are written leave them
        (tmp_path / name).mkdir()
        (tmp_path / name / 'made_by.json').write_bytes(cut_off)
        (tmp_path / name / 'old').touch()
    with pytest.raises(FileExistsError, match=r'no made_by\.json that can be read; --force repl'):
        make_folder(tmp_path / 'data', dict(seed=0), False, lambda folder: None)
    assert make_folder(tmp_path / 'data', dict(seed=0), True, lambda folder: None)
    names = sorted(path.name for path in tmp_path.rglob('*'))
    assert names == ['.data.lock', 'data', 'made_by.json']


def test_what_is_replaced_stays_until_the_new_is_whole(tmp_path):
    folder = tmp_path / 'data'
    make_folder(folder, dict(seed=0), False, lambda place: (place / 'old').touch())

    def full_disk(place):
        (place / 'new').touch()
        raise OSError(28, 'No space left on device')

    with pytest.raises(OSError, match='No space left'):
        make_folder(folder, dict(seed=1), True, full_disk)
    assert (folder / 'old').is_file()
    assert not make_folder(folder, dict(seed=0), False, None)
    assert make_folder(folder, dict(seed=1), True, lambda place: None)  # goes on with what is there
    names = sorted(path.name for path in tmp_path.rglob('*'))
    assert names == ['.data.lock', 'data', 'made_by.json', 'new']


LENGTHS = [5 - i % 5 for i in range(43)]


@pytest.fixture(scope='module')
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp('lengths')
    write_split(root / 'train', [np.full(n, 7) for n in LENGTHS], [0] * len(LENGTHS))
    return LRAText(str(root), 'train')


def batches(dataset, **options) -> list:
    sampler = LengthBatchSampler(DefaultSampler(dataset, shuffle=False), 4, **options)
    found = list(sampler)
    assert len(sampler) == len(found)
    return found


def test_every_sample_comes_once_and_most_batches_have_one_length(dataset):
    found = batches(dataset)
    assert sorted(itertools.chain(*found)) == list(range(43))
    lengths = [[LENGTHS[i] for i in batch] for batch in found]
    # 43 samples of 5 lengths: 10 whole batches. The others come from the shortest on.
    assert all(len(set(one)) == 1 for one in lengths[:10]) and lengths[10] == [3, 4, 5]
    assert batches(dataset, drop_last=True) == found[:10]


def test_a_width_puts_neighbouring_lengths_together(dataset):
    groups = [{(LENGTHS[i] - 1) // 2 for i in batch} for batch in batches(dataset, width=2)]
    assert all({group} in groups for group in range(3))
    with pytest.raises(ValueError, match='width must .*got 0'):
        batches(dataset, width=0)
    with pytest.raises(ValueError, match='must have a method length.*list has none'):
        batches([1, 2])


def test_padding_does_not_count_and_of_two_sequences_the_longer_does(tmp_path):
    write_split(tmp_path / 'train', [[0, 5, 0, 6], [1, 2, 3, 4]], [0], rows=np.array([[0, 1]]))
    write_split(tmp_path / 'val', [[0, 5, 0, 6]], [0])
    assert LRAText(str(tmp_path), 'train').length(0) == 4
    assert LRAText(str(tmp_path), 'train', max_length=3).length(0) == 3
    assert LRAPixels(str(tmp_path), 'val', black_is_padding=True).length(0) == 2
