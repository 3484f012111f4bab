"""Counts and speed of whole models: by the module, by the tool, and beside published figures."""

import json

import pytest
import torch
from conftest import ROOT, load_tool, run_script, toolbox_model
from mmengine.config import Config

from mmlaplace.analysis.complexity import count_complexity
from mmlaplace.analysis.networks import Network

TOOL = ROOT / 'tools/analysis_tools/measure_model.py'
CONFIGS = ROOT / 'configs'
CLASSIFIER = CONFIGS / 'classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
DETECTION, SEGMENTATION = CONFIGS / 'detection', CONFIGS / 'segmentation'


def network(path) -> Network:
    cfg = Config.fromfile(path)
    cfg.model.backbone.pop('init_cfg', None)
    with torch.device('meta'):
        return Network(toolbox_model(cfg)).eval()


def images(side=64) -> torch.Tensor:
    return torch.zeros(1, 3, side, side, device='meta')


@pytest.mark.slow
def test_a_classifier_is_its_backbone_and_its_head():
    whole = network(CLASSIFIER)
    assert [tuple(out.shape) for out in whole(images())] == [(1, 10)]
    alone = count_complexity(whole.model.backbone, (3, 64, 64))
    counted = count_complexity(whole, (3, 64, 64))
    assert counted.weight_macs == alone.weight_macs + 128 * 10
    assert counted.parameters == alone.parameters + 128 * 10 + 10


@pytest.mark.slow
def test_a_detector_has_the_regions_that_its_test_allows():
    whole = network(DETECTION / 'laplacianformer/mask-rcnn_laplacianformer-micro_fpn_mini.py')
    _, (scores, boxes), masks = whole(images(128))
    assert scores.shape == (100, 11) and boxes.shape == (100, 40)  # rpn.max_per_img of 100
    assert masks.shape[0] == 20  # rcnn.max_per_img
    one_stage = network(DETECTION / 'laplacianformer/retinanet_laplacianformer-micro_fpn_mini.py')
    assert len(one_stage(images(128))) == 1


@pytest.mark.slow
def test_an_auxiliary_head_is_computed_only_while_training():
    whole = network(SEGMENTATION / 'laplacianformer/laplacianformer-micro_upernet_1xb16_mini.py')
    assert len(whole(images(128))) == 1
    whole.train()
    assert len(whole(images(128).expand(2, -1, -1, -1))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ('path', 'size', 'parameters', 'macs'),
    [
        # SOFT++'s Tables 5 and 7.
        (DETECTION / 'soft/mask-rcnn_softpp-small_fpn_1x_coco.py', (800, 1280), 48e6, None),
        (
            SEGMENTATION / 'soft/softpp-small_upernet_8xb2-160k_ade20k-512x512.py',
            (512, 512), 60e6, 237e9,
        ),
    ],
)  # fmt: skip
def test_whole_models_have_the_published_counts(path, size, parameters, macs):
    counted = count_complexity(network(path), (3, *size))
    assert counted.parameters == pytest.approx(parameters, abs=0.6e6)  # printed in whole millions
    if macs is not None:
        # The Newton steps are not in the published figure.
        assert counted.macs == pytest.approx(macs, rel=0.03)


def test_the_size_of_an_image_is_that_of_the_config():
    tool = load_tool('tools/analysis_tools/measure_model.py')
    sizes = {
        CLASSIFIER: (48, 48),
        CONFIGS / 'classification/polaformer/polaformer-swin-small_8xb64-384px_in1k.py': (384, 384),
        CONFIGS / 'classification/soft/softpp-tiny_8xb128_in1k.py': (224, 224),
        DETECTION / 'soft/mask-rcnn_softpp-small_fpn_1x_coco.py': (800, 1280),
        SEGMENTATION / 'soft/softpp-small_upernet_4xb2-40k_cityscapes-768x768.py': (768, 768),
    }
    for path, size in sizes.items():
        assert tool.image_size(Config.fromfile(path)) == size


@pytest.mark.slow
def test_the_tool_counts_and_times(tmp_path):
    out = tmp_path / 'cost.json'
    result = run_script(
        TOOL, CLASSIFIER, '--speed', '--rounds', 1, '--batch-size', 2, '--device', 'cpu',
        '--out', out, '--cfg-options', 'model.backbone.attn_cfg.num_landmarks=4',
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(out.read_text())
    assert json.loads(result.stdout[result.stdout.index('{') :]) == found
    assert found['embed_dims'] == [32, 64, 96, 128] and found['image_size'] == [48, 48]
    for mode in ('test', 'training'):
        assert found[f'{mode}_samples_per_second'] > 0
        assert found[f'{mode}_bytes'] > 0
    assert found['training_bytes'] > found['test_bytes'] and found['batch_size'] == 2


@pytest.mark.slow
def test_sequences_are_counted_and_timed(tmp_path):
    out, tasks = tmp_path / 'cost.json', {}
    for name in ('listops/listops_pola', 'retrieval/retrieval_pola'):
        result = run_script(
            TOOL, CONFIGS / f'lra/{name}.py', '--speed', '--rounds', 1, '--batch-size', 2,
            '--length', 128, '--device', 'cpu', '--out', out, '--force',
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        tasks[name.split('/')[0]] = json.loads(out.read_text())
    listops, retrieval = tasks['listops'], tasks['retrieval']
    assert (listops['sequences'], listops['length']) == (1, 128) and 'image_size' not in listops
    assert retrieval['sequences'] == 2 and retrieval['training_samples_per_second'] > 0
    # Two sequences through the same encoder, and a head that is negligible beside it.
    assert retrieval['macs'] == pytest.approx(2 * listops['macs'], rel=0.05)
    assert listops['training_bytes'] > listops['test_bytes'] > 0


@pytest.mark.slow
def test_the_attention_term_is_told_beside_the_convolution(tmp_path):
    config, out = CONFIGS / 'classification/soft/softpp-micro_1xb32_mini.py', tmp_path / 'a.json'
    result = run_script(TOOL, config, '--attention-term', '--device', 'cpu', '--out', out)
    assert result.returncode == 0, result.stderr
    terms = json.loads(out.read_text())['attention_terms']
    *of_soft, of_softmax = terms
    assert len(of_soft) == 4 and all(t['mixed'] > 0 and t['local'] > 0 for t in of_soft)
    assert of_softmax['values'] > 0 and 'local' not in of_softmax  # the last stage has none
    refused = run_script(TOOL, CONFIGS / 'lra/text/text_pola.py', '--attention-term')
    assert refused.returncode == 2 and 'this config is of sequences' in refused.stderr
