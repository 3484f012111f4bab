"""Weights from files that ask for code: refused, and the code not run."""

import os
import pickle
from functools import partial

import pytest
import torch
from mmengine.logging import HistoryBuffer
from saved_weights import build, save

from mmlaplace.engine import UnsafeCheckpointError, read_state_dict


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def write_file(path):
    open(path, 'w').close()


@pytest.mark.parametrize('legacy', [False, True], ids=['zip', 'legacy'])
@pytest.mark.parametrize(('function', 'argument', 'quoted'), [
    (eval, 'open({!r}, "w")', 'builtins?__?.eval'), (os.system, 'touch {}', r'(posix|nt)\.system'),
    (__import__, '{}', '__import__'), (write_file, '{}', 'write_file'),
    (torch.load, '{}', 'torch.serialization.load'),
    (torch.storage._load_from_bytes, '{}', 'torch.storage._load_from_bytes'),
    (partial, '{}', 'functools.partial'),
])  # fmt: skip
def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path, legacy, function, argument, quoted):
    run = tmp_path / 'run'
    content = dict(
        state_dict=build().state_dict(), meta=[Call(function, argument.format(str(run)))]
    )
    torch.save(content, tmp_path / 'a.pth', _use_new_zipfile_serialization=not legacy)
    with pytest.raises(pickle.UnpicklingError, match=rf'a\.pth asks for .*{quoted}.*If you trust'):
        read_state_dict(tmp_path / 'a.pth')
    assert not run.exists()


@pytest.mark.parametrize(('module', 'name', 'rest', 'quoted'), [
    # Attributes of what is allowed are not.
    ('torch._utils', '_rebuild_tensor_v2.__globals__', b'', '_rebuild_tensor_v2.__globals__'),
    ('collections', 'OrderedDict.__class__', b'', 'OrderedDict.__class__'),
    ('torch', 'serialization.os.system', b'', 'torch.serialization.os.system'),
    # 'Storage' in a name has torch's own ways with it.
    ('os', 'Storage', b'', 'os.Storage'),
    # A state of (None, dict) sets attributes: here those of torch's function.
    ('torch._utils', '_rebuild_tensor_v2', b'N}\x8c\x04evilK\x01s\x86b', 'attributes of _reb'),
])  # fmt: skip
def test_allowed_names_are_of_no_use_to_others(tmp_path, module, name, rest, quoted):
    """A pickle that names a global, dots and all, and does something to it."""
    unicode = [b'\x8c' + bytes([len(s)]) + s.encode() for s in (module, name)]
    (tmp_path / 'a.pth').write_bytes(b'\x80\x04' + b''.join(unicode) + b'\x93' + rest + b'.')
    with pytest.raises(UnsafeCheckpointError, match=quoted):
        read_state_dict(tmp_path / 'a.pth')
    assert not hasattr(torch._utils._rebuild_tensor_v2, 'evil')


def test_getattr_is_a_name_only(tmp_path):
    """HistoryBuffer of mmengine is pickled with it, but no pickle can call what it gives."""
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
