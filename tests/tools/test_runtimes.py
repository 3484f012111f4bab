"""The benchmark of runtimes times each way once, goes on where it ended, and says what is wrong."""

import json
import sys

import pytest
import torch
from conftest import ROOT, load_tool, output_of

TOOL = ROOT / 'tools/benchmarks/benchmark_runtimes.py'


@pytest.fixture(scope='module')
def tool():
    return load_tool('tools/benchmarks/benchmark_runtimes.py')


@pytest.fixture(autouse=True)
def _threads():
    """As many threads as before, which the tool sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_whole_models_have_sizes_of_their_own(tool):
    head = 'retinanet_fpn_1x_coco/mlla-tiny'
    sizes = [(224, 224), (512, 512), (1024, 1024)]
    assert tool.planned(['mlla-tiny', head], []) == [
        *(('mlla-tiny', size) for size in sizes),
        (head, (800, 1344)),
    ]
    assert tool.planned([head], [(64, 96)]) == [(head, (64, 96))]
    assert (tool.size_of('800x1344'), tool.size_of('224')) == ((800, 1344), (224, 224))
    everything = [name for name, _ in tool.planned([], [])]
    assert {'timm:cpubone_b3', 'swin-tiny', 'upernet_4xb4-160k_ade20k-512x512/cswin-tiny'} <= {
        *everything
    }


def test_a_way_that_computes_something_else_is_not_the_fastest(tool):
    ways = {
        'eager': dict(ms=9.0, cosine=1.0),
        'openvino-bf16': dict(ms=1.0, cosine=0.5),
        'openvino-int8': dict(failure='no nncf'),
    }
    row = dict(ways=ways)
    cells = [tool.cell(row, way) for way in (*ways, 'compiled')]
    assert cells == ['9.0', '1.0 (wrong)', 'no', 'not run']
    assert tool.cell(dict(ways={}, failure='no such size'), 'eager') == 'no'
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / '.dev_scripts')
        from pages import fastest
    assert fastest.fastest(row) == 'eager'
    assert fastest.fastest(dict(ways={})) == '–'


def test_figures_are_added_to_those_that_are_there(tmp_path, tool, monkeypatch, capsys):
    out = tmp_path / 'log.json'
    asked = []

    def alone(name, size, ways, rounds, threads):
        asked.append((name, size, tuple(ways), rounds))
        if name == 'none':
            return dict(failure='ValueError: there is none')
        if name == 'dies' and 'openvino-f32' in ways:
            return dict(died='the process ended')
        return dict(ways={way: dict(ms=len(asked), cosine=1.0) for way in ways})

    def call(*arguments):
        start = ['tool', '--out', str(out), '--models', 'a', 'none', '--image-size', '48x64']
        monkeypatch.setattr(sys, 'argv', [*start, *arguments])
        tool.main()
        return json.loads(out.read_text())['rows']

    monkeypatch.setattr(tool, 'alone', alone)
    call('--ways', 'eager', '--rounds', '3')
    rows = call('--ways', 'eager', 'onnxruntime', '--rounds', '3')
    assert asked == [
        ('a', (48, 64), ('eager',), 3),
        ('none', (48, 64), ('eager',), 3),
        ('a', (48, 64), ('onnxruntime',), 3),
    ]
    assert [way['ms'] for way in rows['a 48x64']['ways'].values()] == [1, 3]
    assert rows['none 48x64']['failure'] == 'ValueError: there is none'
    shown = capsys.readouterr().out
    assert '| a | 48×64 | 1.0 | 3.0 |' in shown and '| none | 48×64 | no | no |' in shown
    # A way in which the process dies is measured alone, and costs no other way its figures.
    rows = call('--models', 'dies', '--ways', 'eager', 'openvino-f32', '--rounds', '3')
    assert rows['dies 48x64']['ways']['openvino-f32'] == dict(failure='the process ended')
    assert rows['dies 48x64']['ways']['eager']['ms'] > 0
    with pytest.raises(SystemExit):
        call('--rounds', '4')
    assert 'has --rounds 3, got 4' in capsys.readouterr().err
    threads = int(json.loads(out.read_text())['machine']['threads']) + 1
    with pytest.raises(SystemExit):
        call('--threads', str(threads), '--rounds', '3')
    said = capsys.readouterr().err
    assert 'is of another machine' in said and 'name another --out' in said


@pytest.mark.thorough
def test_a_backbone_is_timed_in_a_process_of_its_own(tmp_path):
    pytest.importorskip('onnxscript')
    pytest.importorskip('onnxruntime')
    out = tmp_path / 'log.json'
    start = ['--out', out, '--models', 'laplacianformer-micro', 'none', '--image-size', '48x64']
    output_of(TOOL, *start, '--rounds', '3', '--ways', 'eager', 'onnxruntime')
    row, refused = json.loads(out.read_text())['rows'].values()
    assert row['size'] == [48, 64]
    assert row['ways'].keys() == {'eager', 'onnxruntime'}
    for found in row['ways'].values():
        assert found['cosine'] > 0.9999 and found['ms'] >= found['min_ms'] > 0
        assert found['runs'] == 3 and found['base_ms'] > 0
    assert 'there is no such backbone' in refused['failure'] and refused['ways'] == {}


def test_int8_needs_a_package_that_its_error_names(monkeypatch):
    from mmlaplace.deployment import int8

    monkeypatch.setitem(sys.modules, 'nncf', None)
    with pytest.raises(ImportError, match=r'needs nncf.* pip install "mmlaplace\[int8\]"'):
        int8.require_nncf()


def test_products_of_activations_stay_as_they_are():
    """A kernel, and a sum over tokens, have no weight; linears have one, perhaps transposed."""
    openvino = pytest.importorskip('openvino')
    import numpy as np

    from mmlaplace.deployment.int8 import unweighted

    op = openvino.opset13
    x = op.parameter([1, 8, 4], name='x')
    weight = op.constant(np.eye(4, dtype=np.float32))
    order = op.constant(np.array([1, 0]))
    linear = op.matmul(x, weight, False, False, name='linear')
    turned = op.matmul(linear, op.transpose(weight, order), False, False, name='turned')
    kernel = op.matmul(turned, linear, False, True, name='kernel')
    ones = op.constant(np.ones((8, 1), np.float32))
    total = op.matmul(kernel, ones, False, False, name='total')
    model = openvino.Model([total], [x])
    assert sorted(unweighted(model)) == ['kernel', 'total']
