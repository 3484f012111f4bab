"""Weights in files of many kinds; what is no checkpoint is quoted, and no code in it runs."""

import argparse
import io
import os
import pickle
import sys
import tarfile
import types
from collections import defaultdict, deque
from datetime import date
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import Call
from mmengine.logging import HistoryBuffer
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import checkpoint as mmengine_checkpoints
from saved_weights import same, save
from small_backbone import build

from mmlaplace.engine import UnsafeCheckpointError, load_weights, read_dataset_meta, read_state_dict


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
def test_weights_are_found_in_a_container_under_a_prefix(tmp_path, container, prefix):
    weights = build().state_dict()
    content = {f'{prefix}{k}': v for k, v in weights.items()}
    content['head.fc.weight'] = torch.zeros(3, 3)
    # Of mmengine's EMAHook, 'state_dict' is the average, and this the last step.
    last = dict(ema_state_dict={name: value + 1 for name, value in content.items()})
    file = save(tmp_path / 'a.pth', content, container=container, **last)
    for given in (None, prefix.rstrip('.')):  # as mmengine does, take it without its dot too
        module = build()
        report = load_weights(module, file, given)
        assert same(module, weights)
        assert (report.prefix, set(report.matched)) == (prefix, set(weights))
        assert report.unexpected == ([] if prefix else ['head.fc.weight'])


def test_a_state_dict_that_is_asked_for_is_taken_or_missed(tmp_path):
    weights = build().state_dict()
    file = save(tmp_path / 'a.pth', weights, container='best')
    assert all(map(torch.equal, read_state_dict(file, key='best').values(), weights.values()))
    torch.save(weights, bare := tmp_path / 'bare.pth')
    with pytest.raises(ValueError, match="bare.pth has no weights: .* under 'best', got"):
        read_state_dict(bare, key='best')


def test_a_path_may_begin_at_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    trained = build()
    save(tmp_path / 'a.pth', trained.state_dict())
    assert same(trained, read_state_dict('~/a.pth'))


def test_parameters_and_files_of_old_torch_load(tmp_path):
    trained, file = build(), tmp_path / 'old.pth'
    content = dict(model=dict(trained.named_parameters()))
    torch.save(content, file, _use_new_zipfile_serialization=False)
    state = read_state_dict(file)
    assert same(trained, state)
    assert all(type(value) is torch.Tensor and not value.requires_grad for value in state.values())


def test_plain_data_beside_the_weights_is_passed_over(tmp_path, monkeypatch):
    """All that training scripts write, and the config of Swin's."""
    trained = build()
    module = types.ModuleType('yacs.config')
    module.CfgNode = type('CfgNode', (dict,), dict(__module__='yacs.config'))
    monkeypatch.setitem(sys.modules, 'yacs', types.ModuleType('yacs'))
    monkeypatch.setitem(sys.modules, 'yacs.config', module)
    config = module.CfgNode(MODEL=module.CfgNode(TYPE='pola_swin'))
    config.__dict__['__immutable__'] = True
    schedules = [
        dict(type='MultiStepLR', milestones=[8, 11]),
        dict(type='PolyLR'),
        dict(type='OneCycleLR', eta_max=0.1, total_steps=3),
        dict(type='ReduceOnPlateauLR', monitor='loss'),
    ]
    sgd = partial(torch.optim.SGD, list(trained.parameters()), 0.1)
    built = [PARAM_SCHEDULERS.build(dict(one, optimizer=sgd())) for one in schedules]
    meta = [
        argparse.Namespace(lr=0.1),
        HistoryBuffer([1.0], [1]),
        tmp_path,
        deque([1]),
        np.zeros((0, 2)),
        np.ones(3, dtype=bool),
        np.float64(3),
        np.dtype('int8'),
        torch.float16,
        torch.device('cpu'),
        torch.Size([2]),
        torch.ones(2).bfloat16(),
        defaultdict(int, a=1),
        defaultdict(list, a=[b'', b'a', bytearray(b'b')]),
        {1, 2},
        frozenset('a'),
        2j,
        slice(3),
        range(4),
        10**40,
        None,
        date(2026, 1, 1),
    ]
    beside = dict(optimizer={0: torch.ones(1)}, schedulers=[one.state_dict() for one in built])
    file = save(tmp_path / 'a.pth', trained.state_dict(), meta=meta, config=config, **beside)
    assert same(trained, read_state_dict(file))


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
        (truncated(0), ValueError, 'download or copy it again'),
        (truncated(0.9, _use_new_zipfile_serialization=False), ValueError, 'copy it again'),
        (lambda path, _: path.write_text('<html>404</html>'), ValueError, 'copy it again'),
        (lambda path, _: None, FileNotFoundError, 'check the path'),
        (lambda path, _: torch.save(dict(epoch=3), path), ValueError, r"no weights.*\['epoch'\]"),
        (lambda path, _: torch.save(torch.zeros(2), path), ValueError, 'no weights.*got Tensor'),
        (
            lambda path, _: torch.jit.script(nn.Linear(2, 2)).save(str(path)),
            UnsafeCheckpointError,
            'is a TorchScript program',
        ),
        (tar, UnsafeCheckpointError, 'is a tar archive'),
    ],
)
def test_what_is_no_checkpoint_is_quoted(tmp_path, write, error, message):
    write(tmp_path / 'a.pth', build().state_dict())
    with pytest.raises(error, match=rf'a\.pth.*{message}'):
        read_state_dict(tmp_path / 'a.pth')


@pytest.mark.parametrize(
    ('meta', 'expected'),
    [
        (
            dict(dataset_meta=dict(classes=('cat', 'dog'), palette=[(1, 2, 3), [4, 5, 6]])),
            dict(classes=['cat', 'dog'], palette=[(1, 2, 3), (4, 5, 6)]),
        ),
        (dict(dataset_meta=dict(CLASSES=['cat'], PALETTE=None)), dict(classes=['cat'])),
        (dict(CLASSES=('cat',), epoch=1), dict(classes=['cat'])),
        (dict(dataset_meta=dict(classes='cat', palette='random')), {}),
        ('none', {}),
    ],
)
def test_plain_names_and_colours_are_read_beside_the_weights(tmp_path, meta, expected):
    torch.save(dict(state_dict=dict(weight=torch.zeros(1)), meta=meta), tmp_path / 'a.pth')
    assert read_dataset_meta(tmp_path / 'a.pth') == expected


@pytest.mark.parametrize('legacy', [False, True], ids=['zip', 'legacy'])
@pytest.mark.parametrize(
    ('function', 'argument', 'quoted'),
    [
        (eval, 'open({!r}, "w")', 'builtins?__?.eval'),
        (os.system, 'touch {}', r'(posix|nt)\.system'),
        (__import__, '{}', '__import__'),
        (save, '{}', 'saved_weights.save'),
        (torch.load, '{}', 'torch.serialization.load'),
        (torch.storage._load_from_bytes, '{}', 'torch.storage._load_from_bytes'),
        (partial, '{}', 'functools.partial'),
    ],
)
def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path, legacy, function, argument, quoted):
    run = tmp_path / 'run'
    content = dict(weight=torch.ones(1), meta=[Call(function, argument.format(str(run)))])
    torch.save(content, tmp_path / 'a.pth', _use_new_zipfile_serialization=not legacy)
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
    """A pickle that names a global, dots and all, and does something to it."""
    unicode = [b'\x8c' + bytes([len(s)]) + s.encode() for s in (module, name)]
    (tmp_path / 'a.pth').write_bytes(b'\x80\x04' + b''.join(unicode) + b'\x93' + rest + b'.')
    with pytest.raises(UnsafeCheckpointError, match=quoted):
        read_state_dict(tmp_path / 'a.pth')
    assert not hasattr(torch._utils._rebuild_tensor_v2, 'evil')


def test_getattr_is_a_name_only(tmp_path):
    """HistoryBuffer of mmengine is pickled with it, but no pickle can call what it gives."""
    method = Call(getattr, HistoryBuffer, 'register_statistics')
    save(tmp_path / 'data.pth', dict(weight=torch.ones(1)), message_hub=method)
    assert read_state_dict(tmp_path / 'data.pth').keys() == {'weight'}
    statistics = dict(HistoryBuffer._statistics_methods)
    calling = pickle.dumps(method, protocol=2)[:-1] + b'c_codecs\nencode\n\x85R.'
    (tmp_path / 'call.pth').write_bytes(calling)
    with pytest.raises(ValueError, match='not callable'):
        read_state_dict(tmp_path / 'call.pth')
    assert HistoryBuffer._statistics_methods == statistics


def test_mmengine_loads_the_curves_of_a_run_without_a_warning(tmp_path, monkeypatch):
    """It would say that the file could not safely be loaded, and then run all code in it."""
    load = getattr(mmengine_checkpoints, '_safe_torch_load', None)
    if load is None:
        pytest.skip('this mmengine has one way to load')
    history = HistoryBuffer([1.0, np.float64(2), np.float32(3), np.int64(4)], [1, 1, 1, 1])
    path = tmp_path / 'run.pth'
    torch.save(dict(state_dict={}, message_hub=dict(log_scalars=dict(loss=history))), path)
    said = []
    monkeypatch.setattr(mmengine_checkpoints, 'print_log', lambda text, **_: said.append(text))
    assert load(path)['message_hub']['log_scalars']['loss'].current() == 4
    assert said == []
