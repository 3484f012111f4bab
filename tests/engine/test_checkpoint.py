"""Weights from files: found by themselves, refused where they do not fit, and never run."""

import argparse
import hashlib
import io
import os
import pickle
import re
import subprocess
import sys
import tarfile
import threading
import time
import types
from collections import defaultdict
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import ROOT, quiet_init
from mmengine.config import Config
from mmengine.logging import HistoryBuffer, MMLogger
from mmengine.model import BaseModel, BaseModule
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from mmengine.runner.checkpoint import load_checkpoint

from mmlaplace.engine import UnsafeCheckpointError, checkpoint, load_weights, read_state_dict
from mmlaplace.models import BaseAttention

ARCH = dict(
    embed_dims=(8, 16, 16, 32), depths=(1, 1, 2, 1), num_heads=(1, 1, 2, 2), ffn_ratios=(2,) * 4
)
CONFIG = dict(type='LaplacianFormer', arch=ARCH, img_size=32)


def build(**kwargs):
    return MODELS.build(dict(CONFIG, **kwargs))


def same(module, weights) -> bool:
    own = module.state_dict()
    return set(own) == set(weights) and all(torch.equal(own[k], weights[k]) for k in own)


def save(path, weights, prefix='', container='state_dict', **beside):
    content = {prefix + name: value for name, value in weights.items()}
    torch.save({container: content, **beside} if container else content, path)
    return str(path)


@pytest.mark.parametrize(
    ('container', 'prefix'),
    [
        (None, ''),
        ('state_dict', 'backbone.'),
        ('model', 'module.'),
        ('module', 'module.backbone.'),
        ('model_ema', 'model.'),
        ('state_dict_ema', ''),
    ],
)
@pytest.mark.parametrize('given', [False, True])
def test_weights_are_found_in_a_container_under_a_prefix(tmp_path, container, prefix, given):
    weights = build().state_dict()
    others = {'head.fc.weight': torch.zeros(3, 3)}
    file = tmp_path / 'a.pth'
    save(file, {**{prefix + k: v for k, v in weights.items()}, **others}, container=container)
    module = build()
    # As mmengine does, take the prefix without its dot too.
    report = load_weights(module, file, prefix.rstrip('.') if given else None)
    assert same(module, weights)
    assert report.prefix == prefix
    assert set(report.matched) == set(weights)
    assert report.unexpected == ([] if prefix else list(others))
    assert report.missing == report.resized == []


def test_parameters_and_files_of_old_torch_load(tmp_path):
    trained = build()
    torch.save(
        dict(model=dict(trained.named_parameters())),
        tmp_path / 'old.pth',
        _use_new_zipfile_serialization=False,
    )
    state = read_state_dict(tmp_path / 'old.pth')
    assert same(trained, state)
    assert all(type(value) is torch.Tensor and not value.requires_grad for value in state.values())


class Website(ThreadingHTTPServer):
    """Serves a folder on the loopback, slowly, and counts the files asked for.

    Attributes:
        asked: Paths of the requests.
        cut: Bytes that are left out at the end of each file, as when a connection breaks.
    """

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(('127.0.0.1', 0), partial(self.Handler, directory=str(folder)))
        self.asked, self.cut = [], 0
        self.address = f'http://127.0.0.1:{self.server_port}'

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def copyfile(self, source, outputfile):
            self.server.asked.append(self.path)
            time.sleep(0.5)  # so that processes that start together meet
            content = source.read()
            outputfile.write(content[: len(content) - self.server.cut])


@pytest.fixture
def website(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch_home'))
    (tmp_path / 'site').mkdir()
    with Website(tmp_path / 'site') as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
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
    assert len(kept(website)) == 2


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


def test_processes_of_a_machine_download_once(website):
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


@pytest.mark.parametrize('given', [None, True, ''])
def test_what_is_no_path_is_quoted(given):
    with pytest.raises(ValueError, match=f'by its path or address, got {given!r}'):
        read_state_dict(given)


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
        self.bn = nn.BatchNorm2d(4)

    def forward(self, inputs, mode='tensor'):
        maps = self.bn(self.backbone(torch.stack(inputs)))
        return dict(loss=maps.exp().mean()) if mode == 'loss' else maps


def test_what_a_runner_writes_is_read(tmp_path):
    images = [dict(inputs=torch.randn(3, 8, 8)) for _ in range(4)]
    collate, sampler = dict(type='pseudo_collate'), dict(type='DefaultSampler')
    Runner(
        Net(),
        str(tmp_path),
        train_dataloader=dict(dataset=images, batch_size=2, sampler=sampler, collate_fn=collate),
        train_cfg=dict(by_epoch=True, max_epochs=2),
        optim_wrapper=dict(
            type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-2), clip_grad=dict(max_norm=1)
        ),
        param_scheduler=dict(type='CosineAnnealingLR', T_max=2),
        custom_hooks=[dict(type='EMAHook', momentum=0.1)],
        experiment_name=tmp_path.name,
        default_scope='mmengine',
        log_level='ERROR',
    ).train()
    file = tmp_path / 'epoch_2.pth'
    written = torch.load(file, weights_only=False)
    assert {'optimizer', 'message_hub', 'param_schedulers'} <= set(written)
    model = Net()
    assert load_weights(model, file).prefix == ''
    assert same(model, written['state_dict'])
    backbone = Net().backbone
    assert load_weights(backbone, file).prefix == 'backbone.'
    # 'state_dict' is the average, and 'ema_state_dict', in spite of its name, the last step.
    last = written['ema_state_dict']['module.backbone.0.weight']
    assert not torch.equal(backbone[0].weight, last)


def test_plain_data_beside_the_weights_is_passed_over(tmp_path):
    trained = build()
    meta = dict(
        args=argparse.Namespace(lr=0.1),
        arrays=[np.zeros((0, 2)), np.ones(3, dtype=bool), np.float64(3), np.dtype('int8')],
        torch=[torch.float16, torch.device('cpu'), torch.Size([2]), torch.ones(2).bfloat16()],
        counts=defaultdict(int, a=1),
        lists=defaultdict(list, a=[b'', b'a', bytearray(b'b')]),
        others=[{1, 2}, frozenset('a'), 2j, slice(3), range(4), 10**40, None],
        scalars=HistoryBuffer([1.0], [1]),
    )
    content = dict(meta=meta, optimizer={0: torch.ones(1)}, model=trained.state_dict())
    torch.save(content, tmp_path / 'a.pth')
    assert same(trained, read_state_dict(tmp_path / 'a.pth'))


def test_config_of_swins_training_script_beside_the_weights(tmp_path, monkeypatch):
    trained = build()
    module = types.ModuleType('yacs.config')
    module.CfgNode = type('CfgNode', (dict,), dict(__module__='yacs.config'))
    monkeypatch.setitem(sys.modules, 'yacs', types.ModuleType('yacs'))
    monkeypatch.setitem(sys.modules, 'yacs.config', module)
    config = module.CfgNode(MODEL=module.CfgNode(TYPE='pola_swin'))
    config.__dict__['__immutable__'] = True
    torch.save(dict(model=trained.state_dict(), config=config, epoch=1), tmp_path / 'a.pth')
    assert same(trained, read_state_dict(tmp_path / 'a.pth'))


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def hand_written(module: str, name: str, rest: bytes) -> bytes:
    """A pickle that names a global, dots and all, and does something to it."""
    unicode = [b'\x8c' + bytes([len(s)]) + s.encode() for s in (module, name)]
    return b'\x80\x04' + b''.join(unicode) + b'\x93' + rest + b'.'


def write_file(path):
    open(path, 'w').close()


@pytest.mark.parametrize('legacy', [False, True], ids=['zip', 'legacy'])
@pytest.mark.parametrize(
    ('function', 'quoted'),
    [
        (eval, 'builtins?__?.eval'),
        (exec, 'builtins?__?.exec'),
        (os.system, r'(posix|nt)\.system'),
        (__import__, '__import__'),
        (write_file, 'write_file'),
        (torch.load, 'torch.serialization.load'),
        (torch.storage._load_from_bytes, 'torch.storage._load_from_bytes'),
        (partial, 'functools.partial'),
    ],
)
def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path, legacy, function, quoted):
    run = tmp_path / 'run'
    argument = {
        eval: f'open({str(run)!r}, "w")',
        exec: f'open({str(run)!r}, "w")',
        os.system: f'touch {run}',
    }.get(function, str(run))
    weights = build().state_dict()
    torch.save(
        dict(state_dict=weights, meta=[Call(function, argument)]),
        tmp_path / 'a.pth',
        _use_new_zipfile_serialization=not legacy,
    )
    with pytest.raises(pickle.UnpicklingError, match=rf'a\.pth asks for .*{quoted}.*If you trust'):
        read_state_dict(tmp_path / 'a.pth')
    assert not run.exists()


@pytest.mark.parametrize(
    ('module', 'name', 'rest', 'quoted'),
    [
        # Attributes of what is allowed are not.
        ('torch._utils', '_rebuild_tensor_v2.__globals__', b'', '_rebuild_tensor_v2.__globals__'),
        ('collections', 'OrderedDict.__class__', b'', 'OrderedDict.__class__'),
        ('torch', 'serialization.os.system', b'', 'torch.serialization.os.system'),
        # 'Storage' in a name has torch's own ways with it.
        ('os', 'Storage', b'', 'os.Storage'),
        # A state of (None, dict) sets attributes: here those of torch's function.
        ('torch._utils', '_rebuild_tensor_v2', b'N}\x8c\x04evilK\x01s\x86b', 'attributes of _reb'),
    ],
)
def test_allowed_names_are_of_no_use_to_others(tmp_path, module, name, rest, quoted):
    (tmp_path / 'a.pth').write_bytes(hand_written(module, name, rest))
    with pytest.raises(UnsafeCheckpointError, match=quoted):
        read_state_dict(tmp_path / 'a.pth')
    assert not hasattr(torch._utils._rebuild_tensor_v2, 'evil')


def test_getattr_is_a_name_only(tmp_path):
    # mmengine's HistoryBuffer is pickled with it, so the name passes, but it gets no attribute: no
    # pickle can call one.
    weights = build().state_dict()
    method = Call(getattr, HistoryBuffer, 'register_statistics')
    save(tmp_path / 'data.pth', weights, message_hub=method)
    assert read_state_dict(tmp_path / 'data.pth').keys() == weights.keys()
    statistics = dict(HistoryBuffer._statistics_methods)
    calling = pickle.dumps(method, protocol=2)[:-1] + b'c_codecs\nencode\n\x85R.'
    (tmp_path / 'call.pth').write_bytes(calling)
    with pytest.raises(ValueError, match='not callable'):
        read_state_dict(tmp_path / 'call.pth')
    assert HistoryBuffer._statistics_methods == statistics


def torchscript(path, weights):
    torch.jit.script(nn.Linear(2, 2)).save(str(path))


def tar(path, weights):
    with tarfile.open(path, 'w') as archive:
        archive.addfile(tarfile.TarInfo('storages'), io.BytesIO())


def truncated(share, **kwargs):
    def write(path, weights):
        torch.save(weights, path, **kwargs)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    return write


@pytest.mark.parametrize(
    ('write', 'error', 'message'),
    [
        (truncated(0.9), ValueError, 'download or copy it again'),
        (truncated(0.5), ValueError, 'download or copy it again'),
        (truncated(0.01), ValueError, 'download or copy it again'),
        (truncated(0), ValueError, 'download or copy it again'),
        (
            truncated(0.9, _use_new_zipfile_serialization=False),
            ValueError,
            'download or copy it again',
        ),
        (lambda path, _: path.write_text('<html>404</html>'), ValueError, 'copy it again'),
        (lambda path, _: None, FileNotFoundError, 'check the path'),
        (lambda path, _: path.mkdir(), FileNotFoundError, 'check the path'),
        (lambda path, _: torch.save(dict(epoch=3), path), ValueError, r"no weights.*\['epoch'\]"),
        (lambda path, _: torch.save(torch.zeros(2), path), ValueError, 'no weights.*got Tensor'),
        (torchscript, UnsafeCheckpointError, 'is a TorchScript program'),
        (tar, UnsafeCheckpointError, 'is a tar archive'),
    ],
)
def test_what_is_no_checkpoint_is_quoted(tmp_path, write, error, message):
    write(tmp_path / 'a.pth', build().state_dict())
    with pytest.raises(error, match=rf'a\.pth.*{message}'):
        read_state_dict(tmp_path / 'a.pth')


def half(weights):
    return {k: v for k, v in weights.items() if 'stages.2.' not in k}


def without(weights, name):
    return {k: v for k, v in weights.items() if not k.startswith(name)}


BLOCK = 'backbone.stages.0.blocks.0'


def net(**kwargs):
    """A model whose first part is loaded before the backbone can refuse its own."""
    return nn.ModuleDict(dict(stem=nn.Linear(2, 2), backbone=build(**kwargs)))


@pytest.mark.parametrize(
    ('change', 'kwargs', 'message'),
    [
        (half, {}, r'only 67 of the 101 tensors.*missing 34 \(backbone.st.*min_matched=0.66 takes'),
        (half, dict(min_matched=0.7), 'only 67 of the 101 tensors'),
        (lambda w: without(w, 'backbone.norm3.bias'), {}, r'missing 1 \(backbone.norm3.bias\)'),
        (
            lambda w: without(w, 'backbone.norm1'),
            dict(min_matched=1),
            r'missing 2 \(backbone.norm1.w',
        ),
        (lambda w: without(w, 'backbone.norm'), {}, r'missing 8 \(backbone.norm0.weight'),
        (lambda w: without(w, 'stem.bias'), {}, r'only 100 of the 101.*min_matched=0.99 takes'),
        (
            lambda w: {**w, f'{BLOCK}.attn.gate.weight': torch.zeros(1)},
            {},
            rf'it has 1 \({BLOCK}.attn.gate.weight\) in layers .* min_matched=0.99 takes',
        ),
        (
            lambda w: {**w, f'{BLOCK}.norm1.bias': torch.tensor([0.0] * 7 + [torch.nan])},
            dict(min_matched=0.1),
            rf'NaN or infinite values in 1 \({BLOCK}.norm1.bias\)',
        ),
        (
            lambda w: {**w, 'stem.bias': torch.tensor([0.0, -torch.inf])},
            {},
            r'NaN or infinite values in 1 \(stem.bias\)',
        ),
        (dict, dict(prefix='neck.'), r"'neck.' matches no tensor.*\{'model.': 101"),
        (dict, dict(min_matched=95), 'between 0 and 1, got 95'),
        (
            lambda w: {**w, **{f'copy.{k}': v for k, v in w.items()}},
            {},
            r"several prefixes alike.*\{'model.': 101, 'model.copy.': 101",
        ),
        (lambda w: {'other.net': torch.zeros(1)}, {}, 'no tensor.*model.other.net.*stem.weight'),
        # Names as common as this one are in most models, at many places.
        (lambda w: {'a.stem.bias': w['stem.bias'], 'b.stem.bias': w['stem.bias']}, {}, 'only 1 of'),
        (lambda w: {**w, 'backbone.norm3.bias': torch.zeros(5)}, {}, r'norm3.bias .* \(5,\)'),
        (lambda w: {**w, 'stem.bias': torch.zeros(5)}, {}, r'does not fit: .*stem.bias'),
    ],
)
def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path, change, kwargs, message):
    file = save(tmp_path / 'a.pth', change(net().state_dict()), 'model.')
    module = net()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with pytest.raises(ValueError, match=f'(?s){message}'):
        load_weights(module, file, **kwargs)
    assert same(module, before)


def test_min_matched_lowers_the_bound_and_the_log_names_the_rest(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(checkpoint, 'print_log', lambda line, **_: lines.append(line))
    weights = half(build().state_dict())
    file = save(tmp_path / 'a.pth', {**weights, 'extra': torch.zeros(1)}, 'backbone.')
    module = build()
    untouched = module.stages[2]['blocks'][0].norm1.weight.clone()
    report = load_weights(module, file, min_matched=0.1)
    assert set(report.matched) == set(weights)
    assert set(report.missing) == set(module.state_dict()) - set(weights)
    assert report.unexpected == ['extra']
    assert torch.equal(module.stages[2]['blocks'][0].norm1.weight, untouched)
    (line,) = lines
    assert f"prefix 'backbone.': matched {len(weights)} of {len(module.state_dict())}" in line
    assert f'missing {len(report.missing)} (stages.2.patch_embed' in line
    assert 'unexpected 1 (extra)' in line


class TableAttention(BaseAttention):
    """Adds a position table of the training resolution to its tokens."""

    def __init__(self, embed_dims, num_heads, input_resolution, init_cfg=None):
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        self.table = nn.Parameter(torch.randn(1, embed_dims, *input_resolution))
        self.scale = nn.Parameter(torch.ones(embed_dims))

    def resize_weight(self, name, value):
        if name != 'table':
            return value
        return nn.functional.interpolate(value, self.table.shape[-2:], mode='bilinear')

    def forward(self, x, hw_shape):
        return x * self.scale + self.table.flatten(2).transpose(1, 2)


@pytest.fixture
def table_attention():
    MODELS.register_module(module=TableAttention)
    yield dict(type='TableAttention')
    MODELS.module_dict.pop('TableAttention')


def by_init_cfg(file, **kwargs):
    module = build(init_cfg=dict(type='Pretrained', checkpoint=file), **kwargs)
    quiet_init(module)
    return module


def by(load):
    def build_and_load(file, **kwargs):
        module = nn.ModuleDict(dict(backbone=build(**kwargs)))
        load(module, file)
        return module['backbone']

    return build_and_load


LOADERS = {
    'load_weights': by(load_weights),
    'load_state_dict': by(lambda m, f: m.load_state_dict(torch.load(f)['state_dict'])),
    'load_from': by(partial(load_checkpoint, logger='silent')),
    'Pretrained': by_init_cfg,
}


@pytest.mark.parametrize('load', LOADERS.values(), ids=LOADERS)
def test_what_follows_the_resolution_is_resized_on_every_way(tmp_path, table_attention, load):
    trained = build(attn_cfg=table_attention)
    file = save(tmp_path / 'a.pth', trained.state_dict(), 'backbone.')
    module = load(file, attn_cfg=table_attention, img_size=(64, 96))
    table, expected = (m.stages[0]['blocks'][0].attn.table for m in (module, trained))
    assert table.shape[-2:] == (16, 24)
    resized = nn.functional.interpolate(expected, (16, 24), mode='bilinear')
    torch.testing.assert_close(table, resized)
    torch.testing.assert_close(module.norm3.weight, trained.norm3.weight)


@pytest.mark.parametrize('load', LOADERS.values(), ids=LOADERS)
def test_what_has_another_shape_is_refused_as_the_way_of_loading_does(tmp_path, load):
    weights = dict(build().state_dict(), **{'norm2.bias': torch.ones(3)})
    file = save(tmp_path / 'b.pth', weights, 'backbone.')
    if load is LOADERS['load_from']:  # mmengine's own is lenient to all models alike
        assert not torch.equal(load(file).norm2.bias, weights['norm2.bias'])
    elif load is LOADERS['load_state_dict']:
        with pytest.raises(RuntimeError, match=r'norm2.bias: .*\[3\]\).*\[16\]\)'):
            load(file)
    else:
        with pytest.raises(ValueError, match=r'another arch: its .*norm2.bias has .*\(3,\), .*16,'):
            load(file)


def test_errors_are_collected_as_torch_does():
    module = build()
    weights = without(module.state_dict(), 'norm0.')
    weights.update({'norm1.bias': torch.zeros(5), 'norm2.bias': torch.zeros(6)})
    weights['stages.0.blocks.0.extra'] = weights['stages.0.blocks.1.norm1.bias'] = torch.zeros(8)
    sizes = [r'size mismatch for norm1.bias.*\[5\]', r'size mismatch for norm2.bias.*\[6\]']
    names = ['Missing.*norm0.weight', 'Unexpected.*blocks.0.extra', 'Unexpected.*blocks.1.norm1.b']
    with pytest.raises(RuntimeError) as error:
        module.load_state_dict(weights)
    assert all(re.search(quoted, str(error.value)) for quoted in (*names, *sizes))
    with pytest.raises(RuntimeError) as error:
        module.load_state_dict(weights, strict=False)
    assert all(re.search(quoted, str(error.value)) for quoted in sizes)
    assert not any(re.search(quoted, str(error.value)) for quoted in names)


def test_weights_that_a_user_filtered_load_into_another_arch():
    module = build(arch=dict(ARCH, depths=(2, 1, 1, 1), embed_dims=(8, 16, 32, 32)))
    own = module.state_dict()
    others = build().state_dict()
    weights = {k: v for k, v in others.items() if k in own and v.shape == own[k].shape}
    assert 0 < len(weights) < len(own)
    report = module.load_state_dict(weights, strict=False)
    assert set(report.missing_keys) == set(own) - set(weights)
    assert report.unexpected_keys == []
    assert all(torch.equal(module.state_dict()[k], weights[k]) for k in weights)


def test_norms_and_stages_of_other_outputs_may_differ(tmp_path):
    classifier = build(out_indices=(3,)).state_dict()
    file = save(tmp_path / 'classifier.pth', classifier, 'backbone.')
    report = load_weights(build(), file)
    assert report.missing == [f'norm{i}.{name}' for i in range(3) for name in ('weight', 'bias')]
    assert report.unexpected == []
    whole = build()
    report = load_weights(build(out_indices=(1,)), save(tmp_path / 'a.pth', whole.state_dict()))
    assert report.missing == []
    assert {name.split('.')[0] for name in report.unexpected} == {
        'stages', 'norm0', 'norm2', 'norm3'
    }  # fmt: skip
    # What only looks like it is refused: a checkpoint that ends with an earlier stage.
    file = save(tmp_path / 'b.pth', build(out_indices=(0, 1)).state_dict())
    with pytest.raises(ValueError, match=r'missing \d+ \(stages.2.patch_embed'):
        load_weights(build(), file)


DENSE_MINI = [
    path
    for task in ('detection', 'segmentation')
    for path in ROOT.glob(f'configs/{task}/*/*_mini.py')
]


@pytest.mark.parametrize('config', sorted(DENSE_MINI), ids=lambda p: p.stem)
def test_the_mini_configs_start_from_a_classifier(tmp_path, config):
    backbone = Config.fromfile(config).model.backbone
    assert set(backbone.init_cfg) == {'type', 'checkpoint', 'prefix'}
    classifier = MODELS.build(dict(backbone, init_cfg=None, img_size=48, out_indices=(3,)))
    file = save(tmp_path / 'a.pth', classifier.state_dict(), 'backbone.', meta=dict(epoch=1))
    module = MODELS.build(dict(backbone, init_cfg=dict(backbone.init_cfg, checkpoint=file)))
    quiet_init(module)
    name = 'stages.0.blocks.0.norm1.bias'
    assert torch.equal(module.get_parameter(name), classifier.get_parameter(name))


def test_one_lost_layer_of_a_hundred_tensors_is_refused(tmp_path):
    weights = build().state_dict()
    lost = [name for name in weights if name.endswith('attn.qkv.weight')]
    for name in lost[:4]:
        del weights[name]
    # More than 95 % of the tensors are there, and the model would be a wreck.
    assert len(weights) / len(build().state_dict()) > 0.95
    with pytest.raises(ValueError, match=r'missing 4 \(stages.0.blocks.0.attn.qkv.weight'):
        load_weights(build(), save(tmp_path / 'a.pth', weights))


def model_of(**parts):
    """A model as the toolboxes have it, of a backbone and linears."""
    parts = {name: nn.Linear(2, 2) for name in parts}
    return nn.ModuleDict(dict(backbone=build(), **parts))


def test_necks_and_heads_are_new_where_the_file_is_a_classifiers(tmp_path):
    classifier = model_of(head=1)
    file = save(tmp_path / 'a.pth', classifier.state_dict())
    detector = model_of(neck=1, bbox_head=1)
    report = load_weights(detector, file)
    assert report.missing == [f'{p}.{n}' for p in ('neck', 'bbox_head') for n in ('weight', 'bias')]
    assert same(detector['backbone'], classifier['backbone'].state_dict())
    for model, other, kwargs in (
        (model_of(neck=1, bbox_head=1), classifier, dict(min_matched=1)),  # where all is wanted
        (model_of(head=1), model_of(), {}),  # a classifier without its head
        (model_of(neck=1, mask_head=1), model_of(neck=1, bbox_head=1), {}),  # another detector
        (model_of(decode_head=1), model_of(head=1, decode_head_ema=1), {}),
    ):
        file = save(tmp_path / 'b.pth', other.state_dict())
        with pytest.raises(ValueError, match='only .* missing'):
            load_weights(model, file, **kwargs)


def wrapped_by_ddp(module):
    return nn.parallel.DistributedDataParallel(module)


WRAPPERS = {
    'data parallel': nn.DataParallel,
    'ddp': wrapped_by_ddp,
    'compiled': torch.compile,
    'ddp compiled': lambda m: torch.compile(wrapped_by_ddp(m)),
    'compiled ddp': lambda m: wrapped_by_ddp(torch.compile(m)),
}


@pytest.fixture(scope='module')
def process_group():
    torch.distributed.init_process_group(
        'gloo', store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize('wrap', WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_are_looked_through_on_both_sides(tmp_path, process_group, wrap):
    trained = build(img_size=64)
    file = save(tmp_path / 'a.pth', wrap(trained).state_dict())
    assert next(iter(torch.load(file)['state_dict'])).startswith(('module.', '_orig_mod.'))
    plain = save(tmp_path / 'plain.pth', trained.state_dict(), 'backbone.')
    for source, target in ((file, lambda m: m), (plain, wrap), (file, wrap)):
        module = build()
        report = load_weights(target(module), source)
        assert set(report.matched) == set(trained.state_dict())
        assert same(module, trained.state_dict())
    # In the middle of a name, with the prefix given as it stands in the file.
    net = nn.ModuleDict(dict(backbone=torch.compile(build())))
    load_weights(net['backbone'], file)
    load_weights(net, plain)
    assert same(net['backbone']._orig_mod, trained.state_dict())
    compiled = save(tmp_path / 'c.pth', net.state_dict(), 'module.')
    module = build()
    report = load_weights(module, compiled, prefix='module.backbone._orig_mod.')
    assert report.prefix == 'module.backbone.'
    assert same(module, trained.state_dict())


def test_names_with_and_without_compilation_in_one_file_are_ambiguous(tmp_path):
    weights = build().state_dict()
    both = {**weights, **{f'_orig_mod.{k}': v + 1 for k, v in weights.items()}}
    with pytest.raises(ValueError, match="several prefixes alike.*'_orig_mod.'"):
        load_weights(build(), save(tmp_path / 'a.pth', both))


def test_resized_names_are_reported(tmp_path, table_attention):
    file = save(tmp_path / 'a.pth', build(attn_cfg=table_attention).state_dict())
    report = load_weights(build(attn_cfg=table_attention, img_size=64), file)
    assert report.resized == [n for n in report.matched if n.endswith('attn.table')]
    assert len(report.resized) == 5


def pretrained(file, **kwargs):
    return dict(type='Pretrained', checkpoint=file, **kwargs)


def test_pretrained_comes_last_and_once(tmp_path):
    trained = build()
    weights = without(trained.state_dict(), 'norm1.')
    file = save(tmp_path / 'a.pth', weights, 'model.backbone.')
    module = build(
        init_cfg=[pretrained(file), dict(type='Constant', layer=['LayerNorm', 'Linear'], val=7.0)]
    )
    parent = BaseModule()
    parent.backbone = module
    quiet_init(parent)
    assert (module.norm1.weight == 7).all()
    assert all(torch.equal(module.state_dict()[k], weights[k]) for k in weights)
    assert len(module.init_cfg) == 2
    with torch.no_grad():
        module.norm1.weight.zero_()
        module.norm2.weight.zero_()
    quiet_init(module)
    assert not module.norm1.weight.any() and not module.norm2.weight.any()


def test_the_log_says_what_was_loaded(tmp_path):
    weights = {k: v + 1 for k, v in without(build().state_dict(), 'norm1.').items()}
    module = build(
        init_cfg=[
            pretrained(save(tmp_path / 'a.pth', weights)),
            dict(type='Constant', val=0, layer='LayerNorm'),
        ]
    )
    log = tmp_path / 'run.log'
    MMLogger.get_instance(tmp_path.name, log_file=str(log), log_level='INFO')
    module.init_weights()
    text = log.read_text()
    assert 'norm2.weight - torch.Size([16]): \nLoaded from ' in text
    assert 'norm1.weight - torch.Size([16]): \nConstantInit' in text
    assert not hasattr(module, '_params_init_info')


@pytest.mark.parametrize(
    ('init_cfg', 'message'),
    [
        (dict(type='Pretrained', checkpoint='a.pth', strict=True), r"unknown: \['strict'\]"),
        (dict(type='Pretrained', prefix='backbone.'), 'has a checkpoint and the keys.*min_matched'),
        (dict(type='Pretrained', checkpoint=None), 'got .*None.*a path or address; random weights'),
        ([dict(type='Pretrained', checkpoint='nowhere.pth')], 'nowhere.pth'),
    ],
)
def test_a_wrong_pretrained_is_quoted_each_time(init_cfg, message):
    module = build(init_cfg=init_cfg)
    for _ in range(2):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            quiet_init(module)
    assert not module.is_init


HEADS = {
    'mmpretrain': dict(
        type='ImageClassifier',
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=3, in_channels=32),
    ),
    'mmdet': dict(
        type='RetinaNet',
        neck=dict(type='FPN', in_channels=[8, 16, 16, 32], out_channels=8, num_outs=5),
        bbox_head=dict(
            type='RetinaHead', num_classes=3, in_channels=8, feat_channels=8, stacked_convs=1
        ),
    ),
    'mmseg': dict(
        type='EncoderDecoder',
        decode_head=dict(type='FCNHead', in_channels=32, channels=8, in_index=3, num_classes=3),
    ),
}


@pytest.mark.parametrize('toolbox', HEADS)
def test_pretrained_in_the_models_of_the_toolboxes(tmp_path, toolbox):
    models = pytest.importorskip(f'{toolbox}.registry').MODELS
    pytest.importorskip(f'{toolbox}.utils').register_all_modules(init_default_scope=False)
    outs = (3,) if toolbox == 'mmpretrain' else (0, 1, 2, 3)
    trained = build(out_indices=outs)
    file = save(tmp_path / 'a.pth', trained.state_dict(), 'backbone.', meta=dict(epoch=1))
    for init_cfg in (pretrained(file, prefix='backbone.'), pretrained(file)):
        backbone = dict(CONFIG, out_indices=outs, init_cfg=init_cfg)
        with DefaultScope.overwrite_default_scope(toolbox):
            model = models.build(dict(HEADS[toolbox], backbone=backbone))
            quiet_init(model)
        assert same(model.backbone, trained.state_dict())
