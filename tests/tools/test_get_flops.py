"""Counts and speed: by hand, against mmengine's counter, by the tools, and as published."""

import contextlib
import json
import re

import pytest
import torch
from conftest import ROOT, OnMap, output_of, refusal_of, registered
from mmengine.analysis import FlopAnalyzer
from mmengine.config import Config
from mmengine.registry import MODELS
from torch.utils.flop_counter import FlopCounterMode

from mmlaplace import get_model
from mmlaplace.analysis import measuring
from mmlaplace.analysis.complexity import (
    FLOP_FORMULAS,
    count_complexity,
    mmengine_flop_handles,
)
from mmlaplace.analysis.networks import Network, image_size
from mmlaplace.analysis.training_memory import LayerByLayer, estimate_training
from mmlaplace.lab.side_by_side.attention_cost import cost_of
from mmlaplace.model_zoo import get_config, read_models
from mmlaplace.models import BaseAttention, LaplacianAttention
from mmlaplace.ops import use_backend
from mmlaplace.ops.table import OPS

CONFIGS = ROOT / 'configs'
CLASSIFIER = CONFIGS / 'classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
TEXT = CONFIGS / 'lra/text.py'
FEWER = ('--attn-cfg', 'num_landmarks=4')
TOOL = ROOT / 'tools/analysis_tools/get_flops.py'


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


HEADS, TOKENS, FEW, DIMS = 2, 37, 5, 8  # of the calls in the table of ops
# MACs of a head in these calls, by hand.
BY_HAND = {
    'laplacian_kernel': TOKENS * FEW * DIMS,
    'gaussian_kernel': TOKENS * FEW * DIMS,
    'newton_schulz_inverse': 20 * 2 * TOKENS**3,
    'cholesky_inverse': TOKENS**3 // 2,
    # The sums of keys and values, their products with queries, and two normalisers.
    'linear_attention': 2 * TOKENS * DIMS * DIMS + 2 * TOKENS * DIMS,
    # The kernel of all pairs, and the sums of values and of weights.
    'kernel_attention': TOKENS**2 * (DIMS + DIMS + 1),
    # Two kernels of all tokens, each with the sums of values and weights, and P times these sums.
    'normalized_nystrom_attention': 2 * TOKENS * FEW * (DIMS + DIMS + 1) + FEW**2 * (DIMS + 1),
}


@pytest.mark.parametrize('name', BY_HAND)
def test_the_table_of_ops_counts_a_call_as_by_hand(name):
    tensors, row = OPS[name].tensors(), OPS[name]
    with FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS) as counter:
        getattr(torch.ops.mmlaplace, name)(*row.compiled_arguments(**tensors))
    assert counter.get_total_flops() == pytest.approx(2 * HEADS * BY_HAND[name], rel=1e-4)


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
    tiny = 'laplacianformer-tiny_8xb128_in1k'
    softpp = CONFIGS / 'classification/soft/softpp-tiny_8xb128_in1k.py'
    printed = output_of(TOOL, tiny, softpp, 'efficientvit-b0_8xb128_in1k')  # which has a neck
    larger = output_of(TOOL, tiny, '--image-size', 448, '--attn-cfg', 'num_landmarks=4')
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
    ('words', 'message'),
    [
        (['soft-tiny-exact_32xb32_in1k', *FEWER], 'one for each stage'),
        (['mask-rcnn_agent-swin-tiny_fpn_ms-1x_coco', *FEWER], 'one for each stage'),
        ([TEXT, '--image-size', 64], 'needs a model of images, and .*text.py is of sequences'),
        ([TEXT, '--memory'], '--memory needs a model of images'),
        ([CLASSIFIER, '--length', 64], '--length 64 needs a model of sequences; take --image-size'),
        ([CLASSIFIER, '--image-size', 1, 2, 3], 'must be one or two sides, got 1 2 3'),
        ([CLASSIFIER, '--checkpoint', 'a.pth'], '--checkpoint is for --attention-term'),
        ([CLASSIFIER, '--num-images', 2, '--time'], 'give it alone'),
        (['--attention', 'Laplace'], "no attention 'Laplace'"),
        (['--attention', 'LinearAttention', '--image-size', 64, 96], 'measures square images'),
        ([CLASSIFIER, '--attention', 'LinearAttention'], 'no model; leave CONFIG out'),
        (['--attention', 'LinearAttention', '--memory'], 'no model; leave --memory out'),
        ([CLASSIFIER, '--memory', '--time'], 'estimates instead of measuring'),
        (['softpp-tiny_8xb128', 'no_such_model'], "matches 'no_such_model'"),
        (['--match', 'no_such_model'], "no classifier has one of .'no_such_model'."),
    ],
)
def test_what_cannot_be_changed_or_counted_is_told(words, message):
    assert re.search(message, refusal_of(TOOL, *words))


def rows_of(tmp_path, *words) -> list:
    """The rows that the tool writes."""
    out = tmp_path / 'a.json'
    output_of(TOOL, *words, '--device', 'cpu', '--out', out, '--force')
    return json.loads(out.read_text())['rows']


def test_each_size_is_a_row_by_either_name_of_the_option(tmp_path):
    options = ('--image-size', 64, '--image-size', 32, 96)
    square, wide = rows_of(tmp_path, CLASSIFIER, *options)
    assert [(row['height'], row['width']) for row in (square, wide)] == [(64, 64), (32, 96)]
    assert square['macs'] > wide['macs'] and square['parameters'] == wide['parameters']
    (again,) = rows_of(tmp_path, CLASSIFIER, '--shape', 64)  # as mmpretrain's tool has it
    assert again == square
    fewer = ('--cfg-options', 'model.backbone.attn_cfg.num_landmarks=4')
    (changed,) = rows_of(tmp_path, CLASSIFIER, '--shape', 64, *fewer)
    assert changed['macs'] < square['macs'] and changed['weight_macs'] == square['weight_macs']


def test_published_figures_are_of_a_model_as_it_is(tmp_path):
    tiny = 'laplacianformer-tiny_8xb128_in1k'
    options = ([], ['--image-size', 256], ['--attn-cfg', 'num_landmarks=4'])
    rows = [row for words in options for row in rows_of(tmp_path, tiny, *words)]
    assert ['published' in row for row in rows] == [True, False, False]
    by_file = CONFIGS / f'classification/laplacianformer/{tiny}.py'
    assert rows_of(tmp_path, by_file) == rows[:1]


def test_a_model_is_counted_at_the_size_of_its_test_images(tmp_path):
    name = 'softpp-small_8xb128-test-384px_in1k'
    (row,) = rows_of(tmp_path, name)
    (entry,) = [model for model in read_models() if model.name == name]
    assert (row['height'], row['weight_macs']) == (384, entry.metadata['MACs'])


def test_validation_images_are_counted_each_in_its_size(tmp_path, noise_images):
    """As mmdet's tool does."""
    for folder, side in (('one', 48), ('two', 64)):
        noise_images(tmp_path / folder, side, classes=1)
    cfg = Config.fromfile(CLASSIFIER)
    pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    dataset = dict(type='CustomDataset', classes=['0'], pipeline=pipeline)
    of = [dict(dataset, data_root=str(tmp_path / folder)) for folder in ('one', 'two')]
    cfg.val_dataloader.dataset = dict(type='ConcatDataset', datasets=of)
    cfg.dump(tmp_path / 'config.py')
    small, large = (
        row['macs'] for row in rows_of(tmp_path, CLASSIFIER, '--image-size', 48, '--image-size', 64)
    )
    (mean,) = rows_of(tmp_path, tmp_path / 'config.py', '--num-images', 3)
    assert mean['images'] == 3
    assert mean['macs'] == pytest.approx((2 * small + large) / 3)


def test_attentions_are_measured_in_a_host(tmp_path):
    names = 'LinearAttention', 'SoftmaxAttention, relative_bias=false'
    sides = ('--image-size', 32, '--image-size', 64)
    rows = rows_of(tmp_path, '--attention', *names, '--host', 'vit', *sides)
    assert [(row['attention'], row['host']) for row in rows] == [(name, 'vit') for name in names]
    for row in rows:
        assert list(row['cost']) == ['forward', 'forward and backward']
        assert all([r['side'] for r in p['rows']] == [32, 64] for p in row['cost'].values())
    # Memory is the same in each call, and another one in another host.
    own = cost_of(names[0], 'vit', [32, 64])['forward']['rows']
    assert [r['MB'] for r in rows[0]['cost']['forward']['rows']] == [r['MB'] for r in own]


NAME, SIDE = 'polaformer-pvtv2-b0_8xb128_in1k', (128, 128)


@pytest.mark.slow
def test_images_and_sequences_are_counted_and_timed(tmp_path):
    def measured(config, *options) -> dict:
        (found,) = rows_of(tmp_path, config, *options)
        return found

    speed = ('--time', '--rounds', 1, '--batch-size', 2)
    found = measured(CLASSIFIER, *speed, '--cfg-options', 'model.backbone.attn_cfg.num_landmarks=4')
    assert found['embed_dims'] == [32, 64, 96, 128]
    assert (found['height'], found['width']) == (48, 48)
    listops, retrieval = (
        measured(CONFIGS / f'lra/{task}.py', *speed, '--length', 128)
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
    row = estimate_training(get_config(name), 8, SIDE)
    backbone = get_model(name, backbone_only=True, with_cp=with_cp).train()
    images = torch.rand(8, 3, *SIDE)
    step = measuring.model_job(backbone, images, train=True)
    gradients = measuring.bytes_of(tuple(backbone.parameters()))
    estimated = row['activations_with_cp' if with_cp else 'activations'] + gradients
    # Temporaries are not in the estimate; they count for more where little else is kept.
    with LayerByLayer():
        held = measuring.tensor_memory(step, torch.device('cpu')) + measuring.bytes_of((images,))
    assert estimated == pytest.approx(held, rel=0.25 if with_cp else 0.1)


# Weights, gradients, two moments of AdamW, and averaged weights.
@pytest.mark.parametrize(('name', 'copies'), [(NAME, 4), ('laplacianformer-tiny_8xb128_in1k', 5)])
def test_averaged_weights_take_as_much_as_the_weights(name, copies):
    backbone = get_model(name, backbone_only=True)
    weights = measuring.bytes_of(tuple(backbone.parameters()))
    assert estimate_training(get_config(name), 2, (64, 64))['states'] == copies * weights


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


@pytest.mark.slow
def test_the_tool_of_memory_prints_and_writes(tmp_path):
    out = tmp_path / 'memory.json'
    options = ('--memory', '--image-size', 64, 64, '--out', out)
    printed = output_of(TOOL, 'softpp-tiny_8xb128', *options)
    assert 'not measured on a GPU' in printed
    (row,) = json.loads(out.read_text())['rows']
    assert (row['config'], row['batch_size']) == ('softpp-tiny_8xb128_in1k', 128)
    assert 0 < row['activations_with_cp'] < row['activations']
