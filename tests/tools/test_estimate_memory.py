"""The estimate of the memory of training is what torch holds, and linear in the batch."""

import json

import pytest
import torch
from conftest import ROOT, load_tool, run_script

from mmlaplace import get_model
from mmlaplace.analysis import measuring

estimate_memory = load_tool('tools/analysis_tools/estimate_memory.py')

NAME, SIDE = 'polaformer-pvtv2-b0_8xb128_in1k', (128, 128)


@pytest.mark.slow
@pytest.mark.parametrize('with_cp', [False, True])
def test_estimate_is_near_the_peak_of_a_training_step(with_cp):
    row = estimate_memory.estimate(NAME, 8, SIDE)
    backbone = get_model(NAME, backbone_only=True, with_cp=with_cp).train()
    images = torch.rand(8, 3, *SIDE)
    step = measuring.model_job(backbone, images, train=True)
    gradients = measuring.bytes_of(tuple(backbone.parameters()))
    estimated = row['activations with_cp' if with_cp else 'activations'] + gradients
    # Temporaries are not in the estimate; they count for more where little else is kept.
    held = measuring.tensor_memory(step, torch.device('cpu')) + measuring.bytes_of((images,))
    assert estimated == pytest.approx(held, rel=0.25 if with_cp else 0.1)
    assert row['states'] == 4 * gradients


# Weights, gradients, two moments of AdamW, and averaged weights.
@pytest.mark.parametrize(('name', 'copies'), [(NAME, 4), ('laplacianformer-tiny_8xb128_in1k', 5)])
def test_averaged_weights_take_as_much_as_the_weights(name, copies):
    backbone = get_model(name, backbone_only=True)
    weights = measuring.bytes_of(tuple(backbone.parameters()))
    assert estimate_memory.estimate(name, 2, (64, 64))['states'] == copies * weights


def test_activations_are_linear_in_the_batch():
    backbone = get_model(NAME, backbone_only=True).train()
    kept, _ = estimate_memory.kept_bytes(backbone, torch.rand(6, 3, *SIDE))
    assert estimate_memory.estimate(NAME, 6, SIDE)['activations'] == kept


@pytest.mark.slow
def test_the_tool_prints_and_writes(tmp_path):
    tool, out = ROOT / 'tools/analysis_tools/estimate_memory.py', tmp_path / 'memory.json'
    result = run_script(tool, 'softpp-tiny_8xb128', '--image-size', 64, 64, '--out', out)
    assert result.returncode == 0, result.stderr
    assert 'not measured on a GPU' in result.stdout
    (row,) = json.loads(out.read_text())['rows']
    assert (row['config'], row['batch']) == ('softpp-tiny_8xb128_in1k', 128)
    assert 0 < row['activations with_cp'] < row['activations']
    result = run_script(tool, 'no-such')
    assert result.returncode == 2
    assert "no model of the metafiles matches ['no-such']" in result.stderr
