"""Files are whole at any moment, and any locale will do."""

import io
import json
import multiprocessing
import os
import re
import runpy
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from mmlaplace.__main__ import main
from mmlaplace.writing import whole_file, write_whole

PROCESSES = multiprocessing.get_context('fork')  # which have imported torch already


def write_half(path):
    with whole_file(path) as temporary:
        temporary.write_text('ne')
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    'write',
    [
        lambda path: path.write_bytes(b'new'),
        lambda path: np.save(path, np.zeros(9)),  # by its own open, and by the suffix
        lambda path: 1 / 0,
    ],
)
def test_a_full_disk_or_an_error_keeps_the_old_file_and_leaves_nothing(tmp_path, full_disk, write):
    path = tmp_path / 'a.npy'
    path.write_bytes(b'old')
    message = 'a.npy cannot be written: File too large|division'
    expected = pytest.raises((OSError, ZeroDivisionError), match=message)
    with full_disk, expected, whole_file(path) as temporary:
        write(temporary)
    assert path.read_bytes() == b'old' and list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / 'a.json'
    path.write_text('old')
    killed = PROCESSES.Process(target=write_half, args=(path,))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL and path.read_text() == 'old'
    (left,) = set(tmp_path.iterdir()) - {path}
    assert left.name.startswith('a.json.') and left.suffix == '.partial'
    assert list(tmp_path.glob('*.json')) == [path]  # who lists the files sees no other
    write_whole(path, 'new')
    assert path.read_text() == 'new'


def test_a_link_a_mode_a_device_and_a_long_name_are_kept(tmp_path):
    path, link = tmp_path / 'a.txt', tmp_path / 'link.txt'
    path.touch(mode=0o640)
    link.symlink_to('a.txt')
    write_whole(link, 'é')
    assert link.is_symlink() and path.read_bytes() == 'é'.encode()
    assert path.stat().st_mode & 0o777 == 0o640
    write_whole(os.devnull, 'a')
    assert not Path(os.devnull).is_file()
    longest = tmp_path / 'new folder' / ('é' * 127)
    write_whole(longest, json.dumps(1))
    assert longest.read_text() == '1'


def test_an_error_of_another_file_stays_as_it_is(tmp_path):
    expected = pytest.raises(FileNotFoundError, match='photo.png')
    with expected as raised, whole_file(tmp_path / 'a.txt'):
        (tmp_path / 'photo.png').read_bytes()
    assert raised.value.filename == str(tmp_path / 'photo.png')


def test_a_place_that_cannot_be_or_a_folder_that_is_gone_is_named(tmp_path, monkeypatch):
    (tmp_path / 'file').touch()
    with pytest.raises(OSError, match='file/a.txt cannot be written: .* before; name another'):
        write_whole(tmp_path / 'file/a.txt', '')
    with pytest.raises(IsADirectoryError):
        write_whole(ROOT, '')
    (tmp_path / 'gone').mkdir()
    monkeypatch.chdir(tmp_path / 'gone')
    (tmp_path / 'gone').rmdir()
    with pytest.raises(FileNotFoundError, match='a.txt cannot be written: .* name another place'):
        write_whole('a.txt', '')


# Folders of data sets get their names when they are whole: see mmlaplace/lab/lra/storage.py.
IN_WHOLE_FOLDERS = ('storage', 'fashion', 'images', 'pictures', 'make_stand_in_datasets')
WRITES = re.compile(
    r"\.(write_(text|bytes)|save(fig|z\w*)?|imwrite|to_csv|dump)\(|\bopen\(.*'[wx]b?'"
)
# What a tool makes in a folder of its own, a buffer in memory, a lock, a log, the kernel, a hint.
NO_FILES = re.compile(r"\btemporary\b|\bfile[,)]|'lock'|open\(log|/proc/|, new\)")


def test_all_files_are_written_by_one_function_and_read_in_any_locale():
    """Lines that write a file write to the ``temporary`` path of :func:`whole_file`."""
    folders = ('mmlaplace', 'tools', 'demo')
    for path in (path for folder in folders for path in (ROOT / folder).rglob('*.py')):
        text = path.read_text(encoding='utf-8')
        assert not re.search(r'\.read_text\((?!encoding=)', text), path
        # Writers of the package's deployment take a path, which is a temporary one, and what runs
        # without the package has a function of its own.
        if path.stem not in (*IN_WHOLE_FOLDERS, 'writing') and path.parent.name != 'deployment':
            lines = [line for line in text.splitlines() if WRITES.search(line)]
            assert [line for line in lines if not NO_FILES.search(line)] == [], path


@pytest.mark.parametrize(
    'command',
    [
        lambda: main(['list', 'polaformer-swin*']),
        lambda: runpy.run_path(str(ROOT / 'studies/reproduce.py'), run_name='__main__'),
    ],
    ids=['list', 'tool'],
)
def test_a_command_prints_a_letter_that_the_encoding_lacks(command, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), 'latin-1')
    monkeypatch.setattr(sys, 'stdout', out)
    monkeypatch.setattr(sys, 'argv', ['reproduce.py', '--list'])
    command()
    out.flush()
    assert b'?' in out.buffer.getvalue()
