"""Weights of addresses, the Hugging Face hub and timm work where a path works, and are whole."""

import errno
import hashlib
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import pytest
import torch
from conftest import ROOT, micro_config, output_of, quiet_init, refusal_of
from mmengine.runner import load_checkpoint
from saved_weights import assert_unreadable, same, save
from small_backbone import build

from mmlaplace.checkpoints import write_weights
from mmlaplace.checkpoints._hubs import file_from_hub
from mmlaplace.commands.toolbox_scripts import check_checkpoints
from mmlaplace.engine import read_dataset_meta, read_state_dict
from mmlaplace.toolboxes import toolbox_script

META = dict(dataset_meta=dict(classes=['cat', 'dog'], palette=[(1, 2, 3), (4, 5, 6)]))


def place_of(address, root):
    """The repository, the revision and the file of an address in the folder of a website."""
    repository, _, path = urlsplit(address).path[1:].partition('/resolve/')
    revision, _, name = path.partition('/')
    return root / repository, revision, root / repository / name


class Website(BaseHTTPRequestHandler):
    """The addresses of a hub, /OWNER/NAME/resolve/REVISION/FILE, and /FILE for other websites."""

    def do_GET(self):
        folder, revision, file = place_of(self.path, self.server.folder)
        missing = 'Entry' if revision == 'main' else 'Revision'
        content = file.read_bytes() if file.is_file() else b''
        self.send_response(200 if content else 404)
        self.send_header('X-Error-Code', f'{missing if folder.is_dir() else "Repo"}NotFound')
        self.send_header('X-Repo-Commit', 40 * 'a')
        self.send_header('ETag', f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        if self.command == 'GET':
            self.server.asked.append(self.path)
            time.sleep(self.server.delay)
            self.wfile.write(content[: len(content) - self.server.cut])

    do_HEAD = do_GET


@contextmanager
def serving(folder):
    """A folder as a website; a file comes ``delay`` seconds late and ``cut`` bytes short."""
    with ThreadingHTTPServer(('127.0.0.1', 0), Website) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        server.folder, server.asked, server.cut, server.delay = folder, [], 0, 0
        server.address = f'http://127.0.0.1:{server.server_port}'
        yield server
        server.shutdown()


@pytest.fixture
def website(tmp_path, monkeypatch):
    """A website with weights in the file a.pth. The cache is empty."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch_home'))
    (tmp_path / 'site').mkdir()
    save(tmp_path / 'site/a.pth', build().state_dict())
    with serving(tmp_path / 'site') as server:
        server.cache = tmp_path / 'torch_home/hub/checkpoints'
        yield server


@pytest.fixture
def hub(website, tmp_path, monkeypatch):
    """The website as the Hugging Face hub."""
    constants = pytest.importorskip('huggingface_hub.constants')
    pytest.importorskip('timm')  # which brings safetensors
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(constants, 'ENDPOINT', website.address)
    template = website.address + '/{repo_id}/resolve/{revision}/{filename}'
    monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
    return website


def kept(website):
    """Names of the files in the cache."""
    return sorted(f.name for f in website.cache.iterdir() if f.suffix != '.lock')


def test_an_address_is_read_and_downloaded_once(website):
    other = build()
    (website.folder / 'other').mkdir()
    save(website.folder / 'other/a.pth', other.state_dict())
    addresses = [f'{website.address}/{path}' for path in ('a.pth', 'other/a.pth')]
    for _ in range(2):
        assert not same(other, read_state_dict(addresses[0]))
    assert website.asked == ['/a.pth']
    assert_unreadable(f'{website.address}/b.pth', '/b.pth.*404.*check the address')
    assert same(other, read_state_dict(addresses[1]))
    # The names stay as they are, or a new version would download all files again.
    digits = (hashlib.sha256(address.encode()).hexdigest()[:16] for address in addresses)
    assert kept(website) == sorted(f'{start}_a.pth' for start in digits)


def with_digits(website) -> str:
    """The address of a file with digits of its content, at least one of which is a letter."""
    file, trained = website.folder / 'a.pth', build()
    while True:
        torch.nn.init.normal_(next(trained.parameters()))
        torch.save(trained.state_dict(), file)
        digits = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
        if not digits.isdecimal():
            return f'{website.address}/{file.rename(website.folder / f"a-{digits}.pth").name}'


def test_digits_of_an_address_are_checked(website):
    file = website.folder / Path(with_digits(website)).name
    digits = hashlib.sha256(file.read_bytes()).hexdigest()
    for name in (f'a-{digits}.pth', 'a-deadbeef.pth'):
        os.link(file, website.folder / name)
    for n in (8, 64):
        read_state_dict(f'{website.address}/a-{digits[:n]}.pth?download=1')
    wrong = f'{website.address}/a-deadbeef.pth'
    assert_unreadable(wrong, rf'{wrong} .*expected "deadbeef", got "{digits}"')
    assert kept(website) == sorted(f'a-{digits[:n]}.pth' for n in (8, 64))


@pytest.mark.parametrize('number', ['20240131', '10000000'])
def test_a_date_or_a_number_of_steps_in_an_address_is_no_digits(website, number):
    (website.folder / 'a.pth').rename(website.folder / f'a-{number}.pth')
    read_state_dict(f'{website.address}/a-{number}.pth')


def test_a_copy_that_its_digits_do_not_fit_is_downloaded_again(website):
    address = with_digits(website)
    read_state_dict(address)
    (name,) = kept(website)
    (website.cache / name).write_bytes(b'other')
    read_state_dict(address)
    assert len(website.asked) == 2


def test_a_broken_download_is_not_kept_and_a_cut_off_copy_is_named(website):
    address, website.cut = f'{website.address}/a.pth', 100
    assert_unreadable(address, f'{address}.*download or copy it again')
    assert kept(website) == []
    website.cut = 0
    read_state_dict(address)
    (copy,) = website.cache.glob('*.pth')
    copy.write_bytes(copy.read_bytes()[:-100])
    assert_unreadable(address, f'{address} .* copy it again, after you delete {copy}')


def test_a_cache_that_may_not_be_written_is_read(website, monkeypatch):
    read_state_dict(f'{website.address}/a.pth')
    refused = mock.Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))
    monkeypatch.setattr('mmlaplace.checkpoints._download.FileLock', refused)
    read_state_dict(f'{website.address}/a.pth')
    message = f'b.pth cannot be downloaded: {website.cache} may not be written.*TORCH_HOME'
    assert_unreadable(f'{website.address}/b.pth', message)


def test_those_who_ask_at_once_download_once(website):
    website.delay = 0.2  # so that both ask before one has the file
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(read_state_dict, [f'{website.address}/a.pth'] * 2))
    assert website.asked == ['/a.pth']


@pytest.mark.parametrize(
    ('file', 'source'),
    [
        ('a.safetensors', '{folder}/a.safetensors'),
        ('a.safetensors', '{address}/a.safetensors?download=1'),
        ('o/n/model.safetensors', 'hf://o/n'),
        ('o/n/pytorch_model.bin', 'hf://o/n@main'),
        ('o/n/weights/a.pth', 'hf://o/n@main/weights/a.pth'),
    ],
)
def test_a_source_works_wherever_a_path_works(hub, monkeypatch, file, source):
    trained = build()
    write_weights(hub.folder / file, trained.state_dict(), META)
    source = source.format(folder=hub.folder, address=hub.address)
    started, given = build(), build(init_cfg=dict(type='Pretrained', checkpoint=source))
    quiet_init(given)  # by load_weights
    checkpoint = load_checkpoint(started, source, map_location='cpu')  # as load_from does
    assert same(started, trained.state_dict()) and same(given, trained.state_dict())
    # From now on it is in the cache.
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    assert read_dataset_meta(source) == META['dataset_meta'] == checkpoint['meta']['dataset_meta']
    assert_unreadable('hf://o/m', 'hf://o/m cannot be downloaded.*HF_HUB_OFFLINE')


def test_a_model_of_timm_is_read_by_its_name(hub):
    weights = pytest.importorskip('timm').create_model('test_resnet').state_dict()
    write_weights(hub.folder / 'timm/test_resnet.r160_in1k/model.safetensors', weights, {})
    random = torch.get_rng_state()
    torch.testing.assert_close(read_state_dict('timm://test_resnet'), weights, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)
    elsewhere = read_state_dict('timm://test_resnet', map_location='meta')
    assert all(value.is_meta for value in elsewhere.values())


def test_a_model_of_timm_may_have_a_file_of_another_name(hub, monkeypatch):
    timm = pytest.importorskip('timm')
    weights = timm.create_model('test_resnet').state_dict()
    own = timm.get_pretrained_cfg('test_resnet')
    own.hf_hub_filename = 'own.safetensors'
    write_weights(hub.folder / own.hf_hub_id / own.hf_hub_filename, weights, {})
    monkeypatch.setattr(timm, 'get_pretrained_cfg', lambda name: own)
    torch.testing.assert_close(read_state_dict('timm://test_resnet'), weights, rtol=0, atol=0)


def test_a_revision_of_the_hub_may_have_slashes():
    pytest.importorskip('huggingface_hub')
    with mock.patch('huggingface_hub.hf_hub_download') as download:
        file_from_hub('hf://o/m@refs%2Fpr%2F1/a.pth')
    assert download.call_args.args == ('o/m', 'a.pth')
    assert download.call_args.kwargs['revision'] == 'refs/pr/1'


@pytest.mark.parametrize(
    ('source', 'message'),
    [
        (None, 'by its path or address, got None'),
        ('', "by its path or address, got ''"),
        ('gs://b/a.pth', "gs://b/a.pth begins with '.*https://, hf://, timm:// or mmlaplace://"),
        ('hf://', "'hf://' names no repository.*write hf://OWNER/NAME"),
        ('hf://o/-n', "hf://o/-n: .*'o/-n'; check the name"),
        ('hf://o/m', "hf://o/m: .* shows no repository 'o/m'; check the name"),
        ('hf://o/n', 'hf://o/n: o/n has none of the files model.safetensors, .*hf://o/n/FILE'),
        ('hf://o/n/a.pth', "hf://o/n/a.pth: o/n has no file 'a.pth'; check"),
        ('hf://o/n/cut.safetensors', 'cut.safetensors cannot be read.*copy it again, after you'),
        ('hf://o/n@v2', "hf://o/n@v2: o/n has no revision 'v2'; give"),
        ('timm://', "'timm://': timm .* has no weights of a model ''.*list_pretrained"),
        ('timm://test_resne', "'test_resne'; similar names are .*test_resnet.r160_in1k"),
        ('timm://test_resnet', 'timm://test_resnet: hf://timm/test_resnet.r160_in1k: .*shows no'),
    ],
)
def test_what_is_not_there_or_damaged_is_quoted(hub, source, message):
    cut = hub.folder / 'o/n/cut.safetensors'
    write_weights(cut, build().state_dict(), {})
    cut.write_bytes(cut.read_bytes()[:-1])
    assert_unreadable(source, message)


def test_a_converter_refuses_positions_of_another_map_and_writes_where_they_come_from(tmp_path):
    theirs, ours = tmp_path / 'theirs.pth', tmp_path / 'new[/1]/ours.safetensors'
    names = ('cls_token', 'pos_embed', 'blocks.0.attn.qkv.weight', 'head.weight')
    torch.save({name: torch.ones(1, 5, 2) for name in names}, theirs)
    tool = ROOT / 'tools/model_converters/convert.py'
    told = refusal_of(tool, theirs, '--out', ours, '--image-size', 3, 4)
    assert '4 positions are no map of an image of the sides (3, 4)' in told
    assert 'new[/1]/ours.safetensors' in output_of(tool, theirs, '--out', ours).replace('\n', '')
    assert str(theirs).encode() in ours.read_bytes()


def test_weights_alone_are_not_resumed(hub, monkeypatch):
    write_weights(hub.folder / 'o/n/model.safetensors', build().state_dict(), {})

    def check(*options):
        monkeypatch.setattr(sys, 'argv', ['', str(micro_config('laplacianformer')), *options])
        check_checkpoints(toolbox_script('mmpretrain', 'train.py'))

    check('--cfg-options', 'load_from=hf://o/n')
    with pytest.raises(SystemExit, match='there is no checkpoint no/file.pth; check the path'):
        check('--cfg-options', 'load_from=no/file.pth')
    with pytest.raises(SystemExit, match='hf://o/n has weights alone.*load_from=hf://o/n'):
        check('--resume', 'hf://o/n')


@pytest.mark.parametrize(
    ('package', 'source'),
    [
        ('safetensors', '{}/a.safetensors'),
        ('huggingface_hub', 'hf://o/n'),
        ('timm', 'timm://vit'),
    ],
)
def test_a_missing_package_is_named(hub, monkeypatch, package, source):
    write_weights(hub.folder / 'a.safetensors', build().state_dict(), {})
    monkeypatch.setitem(sys.modules, package, None)
    source = source.format(hub.folder)
    assert_unreadable(source, f'{source}.*: pip install {package}$')


def test_a_hub_without_an_answer_is_asked_once_and_then_the_cache_alone(monkeypatch):
    hub = pytest.importorskip('huggingface_hub')
    asked = []

    def download(repository, name, revision, local_files_only):
        asked.append((name, local_files_only))
        raise hub.errors.LocalEntryNotFoundError('no network')

    monkeypatch.setattr(hub, 'hf_hub_download', download)
    assert_unreadable('hf://o/n', 'hf://o/n cannot be downloaded .*no network')
    first, *others = asked
    assert first == ('model.safetensors', False)
    assert len(others) == 5 and all(cache_alone for _, cache_alone in others)
