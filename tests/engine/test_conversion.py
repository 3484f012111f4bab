"""A conversion moves or drops every tensor by name, and reports what became of each."""

import sys

import pytest
import torch

from mmlaplace.checkpoints import Conversion, position_map
from mmlaplace.commands.converters import parser_for, run


def linear(*sizes) -> dict:
    return {'fc.weight': torch.randn(*sizes), 'fc.bias': torch.randn(sizes[0])}


def test_a_layer_moves_with_its_bias_and_several_are_concatenated():
    theirs = {f'{name}.{kind}': torch.randn(2, 3) for name in 'qk' for kind in ('weight', 'bias')}
    conversion = Conversion(dict(theirs, **{'head.weight': torch.zeros(5, 3)}))
    conversion.layer('qkv', 'q', 'k')
    for _ in range(2):  # the second time there is none any more
        conversion.head()
    ours = conversion.finish()
    assert set(ours) == {'backbone.qkv.weight', 'backbone.qkv.bias', 'head.fc.weight'}
    assert torch.equal(ours['backbone.qkv.bias'], torch.cat([theirs['q.bias'], theirs['k.bias']]))
    assert ('k.bias', 'backbone.qkv.bias', (2, 3)) in conversion.report


def test_what_has_no_place_or_is_not_there_is_named():
    conversion = Conversion(dict(linear(4, 3), index=torch.zeros(1)))
    with pytest.raises(ValueError, match=r'has no q\.weight, which would become backbone\.qkv'):
        conversion.layer('qkv', 'q')
    conversion.layer('proj', 'fc')
    with pytest.raises(ValueError, match=r"1 tensors .* have no place.*\['index'\]"):
        conversion.finish()
    for _ in range(2):
        conversion.drop('index', 'computed in the forward')
    assert conversion.report[-1] == ('index', 'dropped: computed in the forward', (1,))
    assert len(conversion.finish()) == 2


def test_positions_become_a_map_of_the_sides_of_the_image():
    tokens = torch.randn(1, 12, 5)
    assert torch.equal(position_map(tokens, (3, 4))[0, :, 1, 2], tokens[0, 6])
    with pytest.raises(ValueError, match=r'12 positions are no map .*\(1, 1\).*--image-size'):
        position_map(tokens)


def test_run_reads_converts_reports_and_writes(tmp_path, monkeypatch, capsys):
    source, out = tmp_path / 'theirs.pth', tmp_path / 'new[/1]/ours.pth'
    theirs = linear(4, 3)
    torch.save(dict(model={f'module.{name}': value for name, value in theirs.items()}), source)

    def convert(theirs, args):
        conversion = Conversion(theirs)
        conversion.layer('stages.0.blocks.1.proj', 'fc')
        return conversion

    monkeypatch.setattr(sys, 'argv', ['convert.py', str(source), str(out)])
    run(parser_for('Convert.'), convert)
    assert 'new[/1]/ours.pth' in capsys.readouterr().out.replace('\n', '')
    weights = torch.load(out)['state_dict']
    assert torch.equal(weights['backbone.stages.0.blocks.1.proj.weight'], theirs['fc.weight'])
