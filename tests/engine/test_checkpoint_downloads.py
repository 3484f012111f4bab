"""Weights from addresses: downloaded once, checked, and never kept where they are broken."""

import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from saved_weights import build, same, save

from mmlaplace.engine import read_state_dict


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
    """A folder on the loopback; a file comes ``delay`` seconds late and ``cut`` bytes short."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch_home'))
    (tmp_path / 'site/other').mkdir(parents=True)
    handler = partial(Handler, directory=str(tmp_path / 'site'))
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        server.asked, server.cut, server.delay = [], 0, 0
        server.address = f'http://127.0.0.1:{server.server_port}'
        server.folder, server.cache = tmp_path / 'site', tmp_path / 'torch_home/hub/checkpoints'
        yield server
        server.shutdown()


def kept(website):
    """Names of the files in the cache."""
    return sorted(f.name for f in website.cache.iterdir() if f.suffix != '.lock')


def test_an_address_is_read_and_downloaded_once(website):
    trained, other = build(), build()
    save(website.folder / 'a.pth', trained.state_dict())
    save(website.folder / 'other/a.pth', other.state_dict())
    addresses = [f'{website.address}/{path}' for path in ('a.pth', 'other/a.pth')]
    for _ in range(2):
        assert same(trained, read_state_dict(addresses[0]))
    assert website.asked == ['/a.pth']
    with pytest.raises(FileNotFoundError, match=f'{website.address}/b.pth.*404.*check the path'):
        read_state_dict(f'{website.address}/b.pth')
    assert same(other, read_state_dict(addresses[1]))
    # By the names that earlier versions gave, or all would be downloaded again.
    digits = (hashlib.sha256(address.encode()).hexdigest()[:16] for address in addresses)
    assert kept(website) == sorted(f'{start}_a.pth' for start in digits)


def test_digits_of_an_address_are_checked(website):
    file = website.folder / 'a.pth'
    save(file, build().state_dict())
    digits = hashlib.sha256(file.read_bytes()).hexdigest()
    for name in (f'a-{digits[:8]}.pth', f'a-{digits}.pth', 'a-00000000.pth'):
        os.link(file, website.folder / name)
    for n in (8, 64):
        read_state_dict(f'{website.address}/a-{digits[:n]}.pth?download=1')
    wrong = f'{website.address}/a-00000000.pth'
    with pytest.raises(ValueError, match=rf'{wrong} .*expected "00000000", got "{digits}"'):
        read_state_dict(wrong)
    assert kept(website) == sorted(f'a-{digits[:n]}.pth' for n in (8, 64))


@pytest.mark.parametrize('hashed', [False, True], ids=['plain', 'hashed'])
def test_a_broken_download_is_not_kept(website, hashed):
    file = website.folder / 'a.pth'
    torch.save(build().state_dict(), file)
    if hashed:
        digits = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
        file = file.rename(website.folder / f'a-{digits}.pth')
    address, website.cut = f'{website.address}/{file.name}', 100
    with pytest.raises(ValueError, match=f'{address}.*download or copy it again'):
        read_state_dict(address)
    assert kept(website) == []
    website.cut = 0
    read_state_dict(address)
    assert len(kept(website)) == 1


def test_those_who_ask_at_once_download_once(website):
    website.delay = 0.2  # so that both ask before one has the file
    save(website.folder / 'a.pth', build().state_dict())
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read_state_dict, [f'{website.address}/a.pth'] * 2))
    assert website.asked == ['/a.pth']
