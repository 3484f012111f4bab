"""The benchmark of attentions and blocks writes what it prints."""

import importlib.util
import json
import sys

import pytest
import torch
from conftest import load_tool


@pytest.fixture(scope='module')
def tool():
    return load_tool('tools/benchmarks/benchmark_blocks.py')


def run(tool, monkeypatch, out, *arguments) -> dict:
    options = ['--shapes', '1,8,32', '--rounds', '1', '--out', str(out), *arguments]
    monkeypatch.setattr(sys, 'argv', ['benchmark_blocks.py', *options])
    tool.main()
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_every_contender_is_a_row_or_has_a_reason(tool, monkeypatch, tmp_path, capsys, dtype):
    out = tmp_path / 'blocks.json'
    written = run(tool, monkeypatch, out, '--dtype', dtype)
    printed = capsys.readouterr().out
    assert written['dtype'] == dtype and f'wrote {out}' in printed
    for kind, without in zip(tool.CONTENDERS, written['not run']):
        rows = [row for row in written['rows'] if row['kind'] == kind]
        for name_of_pass in tool.PASSES:
            names = [row['contender'] for row in rows if row['pass'] == name_of_pass]
            assert set(names) | set(without) - {'kind', 'shape'} == set(tool.CONTENDERS[kind])
            assert names[0] == 'LaplacianAttention'
        assert all(row['median ms'] >= row['min ms'] > 0 and row['runs'] == 1 for row in rows)
        assert [row['ratio'] for row in rows if row['contender'] == names[0]] == [1, 1]
        memory = {(row['contender'], row['pass']): row['MB'] for row in rows}
        assert all(megabytes > 0 for megabytes in memory.values())
        # What a training step keeps for the backward comes on top of what a forward takes. Of a map
        # as small as this one that shows for an attention alone: the weights' gradients, which a
        # step returns and the figure leaves out, are as large as what Swin's block keeps.
        assert memory[names[0], 'training step'] > memory[names[0], 'forward']
        assert without['softmax, flash'] == 'runs on CUDA in half precision alone'
        assert f'not run: softmax, flash: {without["softmax, flash"]}' in printed


@pytest.mark.skipif(importlib.util.find_spec('mmdet') is None, reason='mmdetection has the blocks')
@pytest.mark.parametrize('name', ['PVT block', 'Swin block'])
def test_a_toolboxs_block_has_the_size_of_ours(tool, name):
    shape = (1, 14, 64)
    count = {
        key: sum(p.numel() for n, p in tool.CONTENDERS['block'][key](shape).named_parameters()
                 if n.split('.')[-2] not in ('sr', 'lepe', 'norm'))
        for key in (name, 'softmax')
    }  # fmt: skip
    # The linears are 12 C^2 weights. Left out above is what one alone has: the reduction of PVT and
    # the depthwise convolution of ours. 1 % is for Swin's table of 13 * 13 positions a head.
    assert count[name] == pytest.approx(count['softmax'], rel=0.01)


def test_a_step_has_gradients_of_the_tokens_and_of_all_weights(tool):
    model = torch.nn.Linear(4, 4)
    model.forward = lambda x, hw_shape: torch.nn.functional.linear(x, model.weight, model.bias)
    tokens = torch.randn(1, 4, 4)
    job = tool.make_job(model, tokens, 2, torch.float32, flash=False, train=True)
    assert [tuple(grad.shape) for grad in job()] == [(1, 4, 4), (4, 4), (4,)]


@pytest.mark.parametrize(
    ('shape', 'message'),
    [('8,56', 'is not three numbers'), ('1,4,32', 'a side of 8'), ('1,8,48', 'a multiple of 32')],
)
def test_a_shape_that_cannot_be_is_refused(tool, monkeypatch, capsys, shape, message):
    monkeypatch.setattr(sys, 'argv', ['benchmark_blocks.py', '--shapes', shape])
    with pytest.raises(SystemExit):
        tool.main()
    assert f"'{shape}'" in capsys.readouterr().err.replace('\n', ' ')
