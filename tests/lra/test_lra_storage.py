"""Folders of data sets are made whole or not at all, whatever else happens to them."""

import json
import time
from functools import partial
from threading import Thread

import pytest

from mmlaplace.lra.storage import make_folder


def test_a_second_call_for_a_folder_waits_for_the_first(tmp_path):
    def fill(seed, folder):
        for i in range(20):
            (folder / f'{i}.txt').write_text(str(seed))
            time.sleep(0.005)

    calls = [
        Thread(target=make_folder, args=(tmp_path / 'task', dict(seed=s), True, partial(fill, s)))
        for s in (0, 1)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    found = {path.read_text() for path in (tmp_path / 'task').glob('*.txt')}
    made_by = json.loads((tmp_path / 'task/made_by.json').read_text())
    assert found == {str(made_by['seed'])}
    assert len(list((tmp_path / 'task').glob('*.txt'))) == 20


@pytest.mark.parametrize('cut_off', ['', '{"se', b'\xff'])
def test_a_record_that_was_cut_off_is_one_sentence_and_force_mends_it(tmp_path, cut_off):
    content = cut_off if isinstance(cut_off, bytes) else cut_off.encode()
    for name in ('data', 'data.partial'):  # as kills while they are written leave them
        (tmp_path / name).mkdir()
        (tmp_path / name / 'made_by.json').write_bytes(content)
        (tmp_path / name / 'old').touch()
    with pytest.raises(FileExistsError, match=r'no made_by\.json that can be read; --force repl'):
        make_folder(tmp_path / 'data', dict(seed=0), False, lambda folder: None)
    assert make_folder(tmp_path / 'data', dict(seed=0), True, lambda folder: None)
    names = sorted(path.name for path in tmp_path.rglob('*'))
    assert names == ['.data.lock', 'data', 'made_by.json']
    assert not make_folder(tmp_path / 'data', dict(seed=0), False, None)


def test_what_another_record_left_is_not_used(tmp_path):
    partial = tmp_path / 'data.partial'
    partial.mkdir()
    (partial / 'made_by.json').write_text('{"seed": 1}')
    (partial / 'old').touch()
    assert make_folder(tmp_path / 'data', dict(seed=0), False, lambda folder: None)
    assert not (tmp_path / 'data/old').exists()
    assert not make_folder(tmp_path / 'data', dict(seed=0), False, None)


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
