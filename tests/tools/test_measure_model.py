"""Counts and speed of whole models: by the module, by the tools, and beside published figures."""

import json
from functools import partial

import pytest
import torch
from conftest import ROOT, load_tool, run_script, toolbox_model
from mmengine.config import Config

from mmlaplace import get_model
from mmlaplace.analysis import measuring
from mmlaplace.analysis.complexity import count_complexity
from mmlaplace.analysis.networks import Network

CONFIGS = ROOT / 'configs'
CLASSIFIER = CONFIGS / 'classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
estimate_memory = load_tool('tools/analysis_tools/estimate_memory.py')
NAME, SIDE = 'polaformer-pvtv2-b0_8xb128_in1k', (128, 128)


@pytest.mark.slow
def test_whole_models_have_the_published_counts():
    path = CONFIGS / 'segmentation/soft/softpp-small_upernet_8xb2-160k_ade20k-512x512.py'
    cfg = Config.fromfile(path)
    cfg.model.backbone.pop('init_cfg', None)
    with torch.device('meta'):
        counted = count_complexity(Network(toolbox_model(cfg)).eval(), (3, 512, 512))
    # SOFT++'s Table 7, in whole millions and without the Newton steps.
    assert counted.parameters == pytest.approx(60e6, abs=0.6e6)
    assert counted.macs == pytest.approx(237e9, rel=0.03)


@pytest.fixture
def measured(tmp_path):
    """Run the tool; what it wrote."""

    def measure(config, *options) -> dict:
        result = run(config, *options, '--device', 'cpu', '--out', tmp_path / 'a.json', '--force')
        assert result.returncode == 0, result.stderr
        found = json.loads((tmp_path / 'a.json').read_text())
        assert json.loads(result.stdout[result.stdout.index('{') :]) == found
        return found

    run = partial(run_script, ROOT / 'tools/analysis_tools/measure_model.py')
    return measure


@pytest.mark.slow
def test_images_and_sequences_are_counted_and_timed(measured):
    speed = ('--speed', '--rounds', 1, '--batch-size', 2)
    found = measured(CLASSIFIER, *speed, '--cfg-options', 'model.backbone.attn_cfg.num_landmarks=4')
    assert found['embed_dims'] == [32, 64, 96, 128] and found['image_size'] == [48, 48]
    listops, retrieval = (
        measured(CONFIGS / f'lra/{task}/{task}_pola.py', *speed, '--length', 128)
        for task in ('listops', 'retrieval')
    )
    for row in (found, listops, retrieval):
        assert row['training_bytes'] > row['test_bytes'] > 0 and row['batch_size'] == 2
        assert all(row[f'{mode}_samples_per_second'] > 0 for mode in ('test', 'training'))
    assert (listops['sequences'], listops['length']) == (1, 128) and 'image_size' not in listops
    # Two sequences through the same encoder, and a head that is negligible beside it.
    assert retrieval['sequences'] == 2
    assert retrieval['macs'] == pytest.approx(2 * listops['macs'], rel=0.05)


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


# Weights, gradients, two moments of AdamW, and averaged weights.
@pytest.mark.parametrize(('name', 'copies'), [(NAME, 4), ('laplacianformer-tiny_8xb128_in1k', 5)])
def test_averaged_weights_take_as_much_as_the_weights(name, copies):
    backbone = get_model(name, backbone_only=True)
    weights = measuring.bytes_of(tuple(backbone.parameters()))
    assert estimate_memory.estimate(name, 2, (64, 64))['states'] == copies * weights


@pytest.mark.slow
def test_the_tool_of_memory_prints_and_writes(tmp_path):
    run = partial(run_script, ROOT / 'tools/analysis_tools/estimate_memory.py')
    out = tmp_path / 'memory.json'
    result = run('softpp-tiny_8xb128', '--image-size', 64, 64, '--out', out)
    assert result.returncode == 0, result.stderr
    assert 'not measured on a GPU' in result.stdout
    (row,) = json.loads(out.read_text())['rows']
    assert (row['config'], row['batch']) == ('softpp-tiny_8xb128_in1k', 128)
    assert 0 < row['activations with_cp'] < row['activations']
