"""Counts and speed: by hand, against mmengine's counter, by the tools, and as published."""

import contextlib
import json

import pytest
import torch
from conftest import ROOT, OnMap, load_tool, output_of, refusal_of, registered
from mmengine.analysis import FlopAnalyzer
from mmengine.config import Config
from mmengine.registry import MODELS

from mmlaplace import get_model
from mmlaplace.analysis import measuring
from mmlaplace.analysis.complexity import count_complexity, mmengine_flop_handles
from mmlaplace.analysis.networks import Network, image_size
from mmlaplace.analysis.training_memory import LayerByLayer
from mmlaplace.model_zoo import read_models
from mmlaplace.models import BaseAttention, LaplacianAttention
from mmlaplace.ops import use_backend

CONFIGS = ROOT / 'configs'
CLASSIFIER = CONFIGS / 'classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
estimate_memory = load_tool('tools/analysis_tools/estimate_memory.py')
get_flops = load_tool('tools/analysis_tools/get_flops.py')


def test_attention_counted_by_hand():
    tokens, dims, marks, heads = 64, 32, 16, 2
    head = dims // heads
    attention = LaplacianAttention(dims, heads, (8, 8), num_landmarks=marks, solver='cholesky')
    counted = count_complexity(OnMap(attention), (dims, 8, 8))
    assert counted.weight_macs == tokens * dims * (3 * dims + dims + 9)
    kernels = (2 * tokens * marks + marks * marks) * head
    # Halves of S and of the forms b M b, which are symmetric, and M = P S P.
    whitening = tokens * marks * (marks + 1) + 2 * marks**3
    values = (2 * tokens + marks) * marks * head
    inverse = marks**3 // 2
    expected = heads * (kernels + whitening + values + inverse)
    assert counted.kernel_macs == pytest.approx(expected, rel=1e-3)
    assert counted.macs == counted.weight_macs + counted.kernel_macs


@pytest.mark.parametrize('name', registered(BaseAttention))
def test_compiled_ops_count_what_their_references_do(name):
    attention = MODELS.build(dict(type=name, embed_dims=32, num_heads=2, input_resolution=(8, 8)))
    native = count_complexity(OnMap(attention), (32, 8, 8)).kernel_macs
    with use_backend('reference'):
        reference = count_complexity(OnMap(attention), (32, 8, 8)).kernel_macs
    # The compiled Nyström attention takes halves of symmetric products, here a seventh of all.
    assert 0.8 * reference <= native <= reference


@pytest.mark.parametrize('width', [4, 5])
def test_every_part_keeps_its_mode_also_after_an_error(width):
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(4, 4)).train()
    model[0].eval()
    with contextlib.suppress(RuntimeError):  # of shapes that do not fit
        count_complexity(model, inputs=torch.zeros(1, width))
    assert [module.training for module in model.modules()] == [True, False, True]


# A few FLOPs an element. They are no multiply-accumulates for us.
NO_PRODUCTS = {
    'batch_norm',
    'group_norm',
    'layer_norm',
    'adaptive_avg_pool2d',
    'upsample_bilinear2d',
    'upsample_nearest2d',
}
# A trace convolves with the filters of an image tap by tap, which is no product to mmengine.
OF_TAPS = {'TTTAttention'}
# A trace takes the form for maps of any size, and convolves with computed filters tap by tap.
IN_A_TRACE = dict(
    InLineAttention=dict(lepe_kernel=0),
    BasedAttention=dict(form='linear'),
    TaylorShiftAttention=dict(form='linear'),
    ReformerAttention=dict(form='chunks'),
)


@pytest.mark.parametrize('name', sorted({*registered(BaseAttention)} - OF_TAPS))
def test_mmengine_counts_the_same_of_an_attention(name):
    """Both count the same products: by dispatch, and in the graph of a trace."""
    cfg = dict(type=name, embed_dims=32, num_heads=2, input_resolution=(16, 16))
    model = OnMap(MODELS.build(dict(cfg, **IN_A_TRACE.get(name, {})))).eval()
    analyzer = FlopAnalyzer(model, torch.zeros(1, 32, 16, 16))
    analyzer.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    analyzer.tracer_warnings('none')
    by_operator = analyzer.set_op_handle(**mmengine_flop_handles()).by_operator()
    total = sum(count for name, count in by_operator.items() if name not in NO_PRODUCTS)
    assert count_complexity(model, (32, 16, 16)).macs == pytest.approx(total, rel=1e-3)


# Not SOFT: heads share the filters of its landmarks, which counts as one head where types decide.
@pytest.mark.parametrize('name', ['LaplacianFormer', 'PVT', 'RAVLT', 'Swin', 'ViT'])
def test_counters_by_types_see_all_layers(name):
    """As thop and ptflops count: by hooks on layers whose type is exactly torch's."""
    zoo, counts = MODELS.get(name).arch_zoo, []
    backbone = MODELS.build(dict(type=name, arch=next(iter(zoo)), img_size=64))
    for layer in backbone.modules():
        if type(layer) in (torch.nn.Linear, torch.nn.Conv2d):
            macs = layer.weight[0].numel()  # of an output value
            layer.register_forward_hook(lambda m, i, out, n=macs: counts.append(n * out.numel()))
    counted = count_complexity(backbone, (3, 64, 64))
    assert sum(counts) == counted.weight_macs


@pytest.mark.slow
def test_whole_models_have_the_published_counts():
    with torch.device('meta'):
        model = get_model('softpp-small_upernet_8xb2-160k_ade20k-512x512')
        counted = count_complexity(Network(model).eval(), (3, 512, 512))
    # SOFT++'s Table 7, in whole millions and without the Newton steps.
    assert counted.parameters == pytest.approx(60e6, abs=0.6e6)
    assert counted.macs == pytest.approx(237e9, rel=0.03)


@pytest.mark.slow
def test_the_tool_prints_ours_beside_the_published():
    tool, tiny = ROOT / 'tools/analysis_tools/get_flops.py', 'laplacianformer-tiny_8xb128_in1k'
    softpp = CONFIGS / 'classification/soft/softpp-tiny_8xb128_in1k.py'
    printed = output_of(tool, tiny, softpp, 'efficientvit-b0_8xb128_in1k')  # which has a neck
    larger = output_of(tool, tiny, '--image-size', 448, '--attn-cfg', 'num_landmarks=4')
    for text, name, figures in (
        (printed, tiny, ('12.06 M', '12.1 M', '2.06 G', '2.10 G', '2.30 G', '4.60 G')),
        (printed, softpp.stem, ('13.07 M', '13.0 M')),
        (printed, 'efficientvit-b0', ('3.41 M',)),
        (larger, tiny, ('8.23 G',)),
    ):
        (row,) = [line for line in text.splitlines() if name.split('_')[0] in line]
        assert all(figure in row for figure in figures), row
    assert '2.10 G' not in larger


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('soft-tiny-exact_32xb32_in1k', 'one for each stage'),
        ('mask-rcnn_agent-swin-tiny_fpn_ms-1x_coco', 'one for each stage'),
        (str(CONFIGS / 'lra/text/text_pola.py'), r'measure_model\.py counts it'),
    ],
)
def test_what_cannot_be_changed_or_counted_is_told(name, message):
    known = {model.name: model for model in read_models()}.get(name)
    with pytest.raises(ValueError, match=message):
        get_flops.figures(name, known, None, dict(num_landmarks=4))


NAME, SIDE = 'polaformer-pvtv2-b0_8xb128_in1k', (128, 128)


@pytest.mark.slow
def test_images_and_sequences_are_counted_and_timed(tmp_path):
    def measured(config, *options) -> dict:
        tool, out = ROOT / 'tools/analysis_tools/measure_model.py', tmp_path / 'a.json'
        printed = output_of(tool, config, *options, '--device', 'cpu', '--out', out, '--force')
        found = json.loads(out.read_text())
        assert json.loads(printed[printed.index('{') :]) == found
        return found

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
    # Two sequences through the same encoder, and a head that is negligible beside it.
    assert (listops['sequences'], listops['length'], retrieval['sequences']) == (1, 128, 2)
    assert retrieval['macs'] == pytest.approx(2 * listops['macs'], rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize('with_cp', [False, True])
@pytest.mark.parametrize('name', [NAME, 'laplacianformer-tiny_8xb128_in1k'])
def test_estimate_is_near_the_peak_of_a_training_step(name, with_cp):
    """Of a step layer by layer, as on a GPU. The FFNs of LaplacianFormer are fused on a CPU."""
    row = estimate_memory.estimate(name, 8, SIDE)
    backbone = get_model(name, backbone_only=True, with_cp=with_cp).train()
    images = torch.rand(8, 3, *SIDE)
    step = measuring.model_job(backbone, images, train=True)
    gradients = measuring.bytes_of(tuple(backbone.parameters()))
    estimated = row['activations with_cp' if with_cp else 'activations'] + gradients
    # Temporaries are not in the estimate; they count for more where little else is kept.
    with LayerByLayer():
        held = measuring.tensor_memory(step, torch.device('cpu')) + measuring.bytes_of((images,))
    assert estimated == pytest.approx(held, rel=0.25 if with_cp else 0.1)


# Weights, gradients, two moments of AdamW, and averaged weights.
@pytest.mark.parametrize(('name', 'copies'), [(NAME, 4), ('laplacianformer-tiny_8xb128_in1k', 5)])
def test_averaged_weights_take_as_much_as_the_weights(name, copies):
    backbone = get_model(name, backbone_only=True)
    weights = measuring.bytes_of(tuple(backbone.parameters()))
    assert estimate_memory.estimate(name, 2, (64, 64))['states'] == copies * weights


@pytest.mark.parametrize(
    ('step', 'size'),
    [
        (dict(type='Resize', scale=(96, 48)), (48, 96)),  # transforms have width and height
        (dict(type='CenterCrop', crop_size=(96, 48)), (48, 96)),
        (dict(type='CenterCrop', crop_size=224), (224, 224)),
    ],
)
def test_the_size_of_a_test_image_is_its_height_and_width(step, size):
    loader = dict(dataset=dict(pipeline=[dict(type='LoadImageFromFile'), step]))
    model = dict(backbone=dict(type='LaplacianFormer'))
    cfg = Config(dict(model=model, test_dataloader=loader, default_scope='mmpretrain'))
    assert image_size(cfg) == size


def test_a_model_that_is_not_there_is_named_also_beside_others():
    tool = ROOT / 'tools/analysis_tools/estimate_memory.py'
    assert "matches 'no_such_model'" in refusal_of(tool, 'softpp-tiny_8xb128', 'no_such_model')


@pytest.mark.slow
def test_the_tool_of_memory_prints_and_writes(tmp_path):
    tool, out = ROOT / 'tools/analysis_tools/estimate_memory.py', tmp_path / 'memory.json'
    printed = output_of(tool, 'softpp-tiny_8xb128', '--image-size', 64, 64, '--out', out)
    assert 'not measured on a GPU' in printed
    (row,) = json.loads(out.read_text())['rows']
    assert (row['config'], row['batch']) == ('softpp-tiny_8xb128_in1k', 128)
    assert 0 < row['activations with_cp'] < row['activations']
