"""Weights from addresses: downloaded once, checked, and never kept where they are broken."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from saved_weights import build, same, save

from mmlaplace.engine import read_state_dict


class Website(ThreadingHTTPServer):
    """Serves a folder on the loopback, and counts the files asked for.

    Attributes:
        asked: Paths of the requests.
        cut: Bytes that are left out at the end of each file, as when a connection breaks.
        delay: Seconds before a file is sent, so that processes that start together meet.
    """

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(('127.0.0.1', 0), partial(self.Handler, directory=str(folder)))
        self.asked, self.cut, self.delay = [], 0, 0
        self.address = f'http://127.0.0.1:{self.server_port}'

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def copyfile(self, source, outputfile):
            self.server.asked.append(self.path)
            time.sleep(self.server.delay)
            content = source.read()
            outputfile.write(content[: len(content) - self.server.cut])


@pytest.fixture
def website(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch_home'))
    (tmp_path / 'site').mkdir()
    with Website(tmp_path / 'site') as server:
        # It looks for the end of the test every 10 ms.
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        server.folder, server.cache = tmp_path / 'site', tmp_path / 'torch_home/hub/checkpoints'
        yield server
        server.shutdown()


def kept(website):
    """Names of the files in the cache."""
    return sorted(f.name for f in website.cache.iterdir() if f.suffix != '.lock')


def test_an_address_is_read_and_downloaded_once(website):
    trained = build()
    save(website.folder / 'a.pth', trained.state_dict())
    for _ in range(2):
        assert same(trained, read_state_dict(f'{website.address}/a.pth'))
    assert website.asked == ['/a.pth']
    with pytest.raises(FileNotFoundError, match=f'{website.address}/b.pth.*404.*check the path'):
        read_state_dict(f'{website.address}/b.pth')
    # Another file of the same name is another file.
    (website.folder / 'other').mkdir()
    other = build().state_dict()
    save(website.folder / 'other/a.pth', other)
    found = read_state_dict(f'{website.address}/other/a.pth')
    assert all(torch.equal(found[k], other[k]) for k in other)
    # By the names that earlier versions gave, or all would be downloaded again.
    addresses = (f'{website.address}/{path}' for path in ('a.pth', 'other/a.pth'))
    digits = (hashlib.sha256(address.encode()).hexdigest()[:16] for address in addresses)
    assert kept(website) == sorted(f'{start}_a.pth' for start in digits)


def test_digits_of_an_address_are_checked(website):
    weights = build().state_dict()
    file = website.folder / 'a.pth'
    save(file, weights)
    digits = hashlib.sha256(file.read_bytes()).hexdigest()
    for n in (8, 64):
        os.link(file, website.folder / f'a-{digits[:n]}.pth')
        read_state_dict(f'{website.address}/a-{digits[:n]}.pth?download=1')
    assert kept(website) == sorted(f'a-{digits[:n]}.pth' for n in (8, 64))
    wrong = f'{website.address}/a-{"0" * 8}.pth'
    os.link(file, website.folder / f'a-{"0" * 8}.pth')
    with pytest.raises(ValueError, match=rf'{wrong} .*expected "00000000", got "{digits}"'):
        read_state_dict(wrong)
    assert len(kept(website)) == 2


@pytest.mark.parametrize('legacy', [False, True], ids=['zip', 'legacy'])
@pytest.mark.parametrize('hashed', [False, True], ids=['plain', 'hashed'])
def test_a_broken_download_is_not_kept(website, hashed, legacy):
    weights = build().state_dict()
    file = website.folder / 'a.pth'
    torch.save(weights, file, _use_new_zipfile_serialization=not legacy)
    if hashed:
        digits = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
        file = file.rename(website.folder / f'a-{digits}.pth')
    address, website.cut = f'{website.address}/{file.name}', 100
    with pytest.raises(ValueError, match=f'{address}.*download or copy it again'):
        read_state_dict(address)
    assert kept(website) == []
    website.cut = 0
    assert read_state_dict(address).keys() == weights.keys()
    assert len(kept(website)) == 1


@pytest.mark.slow
def test_processes_of_a_machine_download_once(website):
    website.delay = 0.5
    save(website.folder / 'a.pth', build().state_dict())
    # Two processes that start at the same time, without importing all of a model.
    code = (
        'import sys; from mmlaplace.engine import read_state_dict\n'
        'print(flush=True); sys.stdin.readline()\n'
        'print(len(read_state_dict(sys.argv[1])))'
    )
    command = [sys.executable, '-c', code, f'{website.address}/a.pth']
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        process.stdout.readline()  # it has imported everything
    for process in processes:
        process.stdin.write('\n')
        process.stdin.flush()
    found = [process.communicate(timeout=60)[0].split() for process in processes]
    assert found == [[str(len(build().state_dict()))]] * 2
    assert website.asked == ['/a.pth']
