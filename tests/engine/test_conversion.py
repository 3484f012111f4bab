"""A table of names moves, changes, joins or drops every tensor, and reports each."""

import pytest
import torch

from mmlaplace.checkpoints import Names, position_map
from mmlaplace.checkpoints.conversion import within


def layers(*names) -> dict:
    shapes = dict(weight=(2, 3), bias=(2,))
    return {f'{n}.{kind}': torch.randn(shape) for n in names for kind, shape in shapes.items()}


def test_rows_have_numbers_changes_and_several_places():
    names = Names({
        **within('stages.{i-1}.', 'block{i}.', {'q.': 'qkv.', 'v.': 'qkv.', 'used.no': None}),
        'block{i}.v.bias': [('first', lambda value, size: value[:1]), ('rest', torch.mul)],
        'head.': 'head.fc.',
    })  # fmt: skip
    theirs = {**layers('block3.v', 'block3.q', 'head'), 'block3.used.no': torch.zeros(1)}
    ours, report = names.convert(theirs, image_size=2)
    q, v, v_bias = (theirs[f'block3.{name}'] for name in ('q.weight', 'v.weight', 'v.bias'))
    assert torch.equal(ours.pop('backbone.stages.2.qkv.weight'), torch.cat([q, v]))
    assert torch.equal(ours.pop('backbone.first'), v_bias[:1])
    assert torch.equal(ours.pop('backbone.rest'), 2 * v_bias)
    assert set(ours) == {'backbone.stages.2.qkv.bias', 'head.fc.weight', 'head.fc.bias'}
    assert ('block3.v.bias', 'backbone.first and backbone.rest', (2,)) in report
    assert report[-1] == ('block3.used.no', 'dropped', (1,))


def test_softmax_on_one_map_has_one_linear():
    attention = {'q.': 'qkv.', 'kv.': 'kv.', 'sr.': 'sr.', 'scale': 'scale'}
    names = Names(within('{i}.attn.', '{i}.', attention))
    theirs = {**layers('0.q', '0.kv', '1.q', '1.kv', '1.sr', '2.kv'), '2.scale': torch.ones(1)}
    ours = names.convert(theirs, prefix='').weights
    assert torch.equal(
        ours['0.attn.qkv.bias'], torch.cat([theirs['0.q.bias'], theirs['0.kv.bias']])
    )
    assert {'1.attn.kv.weight', '2.attn.kv.weight'} < set(ours) and '0.attn.kv.weight' not in ours


def test_a_tensor_without_a_row_is_named():
    with pytest.raises(ValueError, match=r"1 tensors .* have no place.*\['fc\.bias'\]"):
        Names({'fc.weight': 'proj.weight'}).convert(layers('fc'))


def test_positions_become_a_map_of_the_sides_of_the_image():
    tokens = torch.randn(1, 12, 5)
    assert torch.equal(position_map(tokens, (3, 4))[0, :, 1, 2], tokens[0, 6])
    with pytest.raises(ValueError, match=r'12 positions are no map .*\(1, 1\).*--image-size'):
        position_map(tokens)
