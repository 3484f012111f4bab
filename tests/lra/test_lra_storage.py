"""Folders of data sets are made whole or not at all, whatever else happens to them."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from mmlaplace.lra.storage import make_folder


def test_a_second_call_for_a_folder_waits_for_the_first(tmp_path):
    def fill(seed, folder):
        for i in range(20):
            (folder / f'{i}.txt').write_text(str(seed))
            time.sleep(0.005)

    def make(seed):
        make_folder(tmp_path / 'task', dict(seed=seed), True, partial(fill, seed))

    with ThreadPoolExecutor() as pool:
        list(pool.map(make, (0, 1)))
    seed = json.loads((tmp_path / 'task/made_by.json').read_text())['seed']
    assert [path.read_text() for path in (tmp_path / 'task').glob('*.txt')] == [str(seed)] * 20


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
