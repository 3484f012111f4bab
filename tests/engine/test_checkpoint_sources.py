"""Weights in safetensors, on the Hugging Face hub and in timm work wherever a path works."""

import sys
import threading
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from conftest import ROOT, quiet_init, run_script
from mmengine.runner import load_checkpoint
from saved_weights import build, same
from test_checkpoint_files import Call

from mmlaplace.checkpoints import write_weights
from mmlaplace.commands.toolbox_scripts import check_checkpoints
from mmlaplace.engine import UnsafeCheckpointError, read_dataset_meta, read_state_dict
from mmlaplace.toolboxes import toolbox_script

safetensors = pytest.importorskip('safetensors')
constants = pytest.importorskip('huggingface_hub.constants')
timm = pytest.importorskip('timm')
META = dict(dataset_meta=dict(classes=['cat', 'dog'], palette=[(1, 2, 3), (4, 5, 6)]))


class Hub(BaseHTTPRequestHandler):
    """The addresses of a hub, /OWNER/NAME/resolve/REVISION/FILE, and /FILE for other websites."""

    def do_GET(self):
        repository, _, path = self.path[1:].partition('?')[0].partition('/resolve/')
        folder, (revision, _, name) = self.server.folder / repository, path.partition('/')
        missing = 'Entry' if revision == 'main' else 'Revision'
        content = (folder / name).read_bytes() if (folder / name).is_file() else b''
        self.send_response(200 if content else 404)
        self.send_header('X-Error-Code', f'{missing if folder.is_dir() else "Repo"}NotFound')
        self.send_header('X-Repo-Commit', 40 * 'a')
        self.send_header('ETag', f'"{sha256(content).hexdigest()}"')
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        if self.command == 'GET':
            self.wfile.write(content[: len(content) - self.server.cut])

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with ThreadingHTTPServer(('127.0.0.1', 0), Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        server.folder, server.cut = tmp_path / 'hub', 0
        server.address = f'http://127.0.0.1:{server.server_port}'
        monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch_home'))
        monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'cache'))
        monkeypatch.setattr(constants, 'ENDPOINT', server.address)
        template = server.address + '/{repo_id}/resolve/{revision}/{filename}'
        monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
        yield server
        server.shutdown()


@pytest.mark.parametrize(('file', 'source'), [
    ('a.safetensors', '{folder}/a.safetensors'),
    ('a.safetensors', '{address}/a.safetensors?download=1'),
    ('o/n/model.safetensors', 'hf://o/n'), ('o/n/pytorch_model.bin', 'hf://o/n@main'),
    ('o/n/weights/a.pth', 'hf://o/n@main/weights/a.pth'),
])  # fmt: skip
def test_a_source_works_wherever_a_path_works(hub, monkeypatch, file, source):
    trained = build()
    write_weights(hub.folder / file, trained.state_dict(), META)
    source = source.format(folder=hub.folder, address=hub.address)
    started, given = build(), build(init_cfg=dict(type='Pretrained', checkpoint=source))
    quiet_init(given)  # by load_weights
    checkpoint = load_checkpoint(started, source, map_location='cpu')  # as load_from does
    assert same(started, trained.state_dict()) and same(given, trained.state_dict())
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)  # from now on it is in the cache
    assert read_dataset_meta(source) == META['dataset_meta'] == checkpoint['meta']['dataset_meta']
    with pytest.raises(FileNotFoundError, match='hf://o/m cannot be downloaded.*HF_HUB_OFFLINE'):
        read_state_dict('hf://o/m')


def test_a_model_of_timm_is_read_by_its_name(hub):
    weights = timm.create_model('test_resnet').state_dict()
    write_weights(hub.folder / 'timm/test_resnet.r160_in1k/model.safetensors', weights, {})
    random = torch.get_rng_state()
    read = read_state_dict('timm://test_resnet')
    assert read.keys() == weights.keys() and all(torch.equal(read[k], weights[k]) for k in read)
    assert torch.equal(torch.get_rng_state(), random)


def test_code_in_a_file_of_the_hub_is_refused_and_not_run(hub, tmp_path):
    (hub.folder / 'o/n').mkdir(parents=True)
    torch.save(Call(Path.touch, tmp_path / 'run'), hub.folder / 'o/n/pytorch_model.bin')
    with pytest.raises(UnsafeCheckpointError, match='hf://o/n asks for .*could run code'):
        load_checkpoint(build(), 'hf://o/n')
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(('source', 'message'), [
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
])  # fmt: skip
def test_what_is_not_there_or_damaged_is_quoted(hub, source, message):
    cut = hub.folder / 'o/n/cut.safetensors'
    write_weights(cut, build().state_dict(), {})
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_state_dict(source)


@pytest.mark.slow
@pytest.mark.parametrize('start', ['{address}/o/n/', 'hf://o/n/'])
def test_a_download_that_ends_early_is_not_kept(hub, start):
    source = start.format(address=hub.address) + 'model.safetensors'
    write_weights(hub.folder / 'o/n/model.safetensors', build().state_dict(), {})
    hub.cut = 100
    with pytest.raises((ValueError, FileNotFoundError), match=f'{source} cannot be'):
        read_state_dict(source)
    hub.cut = 0
    assert read_state_dict(source)


def test_a_converter_writes_safetensors_by_the_name(tmp_path):
    theirs, ours = str(tmp_path / 'theirs.pth'), str(tmp_path / 'new[/1]/ours.safetensors')
    names = ('cls_token', 'pos_embed', 'blocks.0.attn.qkv.weight', 'head.weight')
    torch.save({name: torch.ones(1, 5, 2) for name in names}, theirs)
    result = run_script(ROOT / 'tools/model_converters/convert.py', theirs, '--out', ours)
    assert 'new[/1]/ours.safetensors' in result.stdout.replace('\n', '')
    with safetensors.safe_open(ours, 'pt') as file:
        assert 'head.fc.weight' in file.keys() and theirs in str(file.metadata())  # noqa: SIM118


def test_weights_alone_are_not_resumed(hub, monkeypatch):
    write_weights(hub.folder / 'o/n/model.safetensors', build().state_dict(), {})
    script = toolbox_script('mmpretrain', 'train.py')
    config = ROOT / 'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
    monkeypatch.setattr(sys, 'argv', ['', str(config), '--cfg-options', 'load_from=hf://o/n'])
    check_checkpoints(script)
    monkeypatch.setattr(sys, 'argv', ['', str(config), '--resume', 'hf://o/n'])
    with pytest.raises(SystemExit, match='hf://o/n has weights alone.*load_from=hf://o/n'):
        check_checkpoints(script)


@pytest.mark.parametrize(
    ('package', 'source'),
    [('safetensors', '{}/a.safetensors'), ('huggingface_hub', 'hf://o/n'), ('timm', 'timm://vit')],
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, package, source):
    write_weights(tmp_path / 'a.safetensors', build().state_dict(), {})
    monkeypatch.setitem(sys.modules, package, None)
    source = source.format(tmp_path)
    with pytest.raises(ImportError, match=f'{source}.*: pip install {package}$'):
        read_state_dict(source)
