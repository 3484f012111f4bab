"""Attentions give what the authors' modules gave, whose files say themselves how they are read."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import quiet_init
from golden_files import DESCRIBED, Source, about, described, write_attention
from mmengine.registry import MODELS
from test_golden import assert_close

from mmlaplace.checkpoints import NameTable

FORWARD, GRADIENT = 1e-5, 1e-4  # two orders of the same fp32 sums
AROUND = ('qkv.', 'kv.', 'proj.', 'lepe.')  # the linears and convolutions around a mixing rule


def assert_as_described(path):
    """The attention that a file describes gives its output and gradients from its weights."""
    said, arrays = about(path), dict(np.load(path))
    tensors = {k: torch.from_numpy(v) for k, v in arrays.items() if k != 'about'}
    inputs = {k: tensors[f'in:{k}'].requires_grad_() for k in 'xqkv' if f'in:{k}' in tensors}
    hw_shape = tuple(said['hw_shape'])
    attention = MODELS.build(dict(said['config'], input_resolution=hw_shape)).eval()
    quiet_init(attention)
    theirs = {k[len('param:') :]: v for k, v in tensors.items() if k.startswith('param:')}
    same = {name: name for name in theirs if not name.startswith(tuple(said['names']))}
    weights = NameTable({**said['names'], **same}).convert(theirs, hw_shape, prefix='').weights
    own = attention.state_dict()
    weights = {k: v.reshape(own[k].shape) if k in own else v for k, v in weights.items()}
    missing, unexpected = attention.load_state_dict(weights, strict=False)
    if 'x' not in inputs:
        missing = [name for name in missing if not name.startswith(AROUND)]
    assert not missing and not unexpected
    if 'x' in inputs:
        out = attention(inputs['x'], hw_shape)
    else:
        out = attention.mix(inputs['q'], inputs['k'], inputs['v'], hw_shape)
    out.backward(tensors['in:grad_y'])
    assert_close(out, tensors['out:y'], FORWARD)
    for name, value in inputs.items():
        assert_close(value.grad, tensors[f'out:grad_{name}'], GRADIENT)


@pytest.mark.parametrize('name', described('attention'))
def test_an_attention_gives_the_authors_output_and_gradients(name):
    assert_as_described(DESCRIBED / f'{name}.npz')


def mix(q, k, v):
    """Linear attention as its authors write it, by all pairs."""
    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    return weights @ v / weights.sum(-1, keepdim=True)


class Rule(torch.nn.Module):
    def forward(self, q, k, v):
        return mix(q, k, v)


class Module(torch.nn.Module):
    """With separate linears, which the attention here has in one."""

    def __init__(self):
        super().__init__()
        for name in NAMES:
            self.add_module(name[:-1], torch.nn.Linear(12, 12))

    def forward(self, x):
        linears = (self.to_q, self.to_k, self.to_v)
        tokens = (linear(x).unflatten(-1, (3, 4)).transpose(1, 2) for linear in linears)
        return self.to_out(mix(*tokens).transpose(1, 2).flatten(2))


NAMES = {'to_q.': 'qkv.', 'to_k.': 'qkv.', 'to_v.': 'qkv.', 'to_out.': 'proj.'}
CONFIG = dict(type='LinearAttention', embed_dims=12, num_heads=3, eps=0.0)
SOURCE = Source('Module', 'owner/name', '0123abc')


def test_a_file_is_read_as_it_was_written(tmp_path):
    x, heads = torch.randn(2, 20, 12), torch.randn(3, 2, 3, 20, 4)
    write_attention(tmp_path / 'x.npz', Module(), dict(x=x), (4, 5), SOURCE, CONFIG, NAMES)
    tokens = dict(zip('qkv', heads))
    write_attention(tmp_path / 'rule.npz', Rule(), tokens, (4, 5), SOURCE, CONFIG)
    for path in tmp_path.iterdir():
        assert about(path)['repository'] == 'owner/name'
        assert_as_described(path)


@pytest.mark.parametrize(
    ('config', 'names'),
    [
        (dict(CONFIG, num_heads=2), NAMES),
        (CONFIG, {'to_k.': 'qkv.', **NAMES}),  # k and q in the other order
        (CONFIG, {key: own for key, own in NAMES.items() if key != 'to_out.'}),
    ],
    ids=['heads', 'order', 'a name is missing'],
)
def test_another_attention_or_other_names_fail(config, names, tmp_path):
    inputs = dict(x=torch.randn(2, 20, 12))
    write_attention(tmp_path / 'x.npz', Module(), inputs, (4, 5), SOURCE, config, names)
    with pytest.raises(AssertionError):
        assert_as_described(tmp_path / 'x.npz')
