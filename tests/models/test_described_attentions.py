"""Attentions give what the authors' modules gave, whose files say themselves how they are read."""

import pytest
import torch
import torch.nn.functional as F
from golden_files import DESCRIBED, Source, about, described, write_attention
from reading_golden_files import assert_as_described


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
