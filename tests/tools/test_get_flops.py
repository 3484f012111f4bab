"""Counting: by hand, against mmengine's counter, and the tool that prints it."""

import contextlib

import pytest
import torch
from conftest import ROOT, registered, run_script
from mmengine.analysis import FlopAnalyzer
from mmengine.registry import MODELS

from mmlaplace.analysis.complexity import count_complexity, mmengine_flop_handles
from mmlaplace.models import BaseAttention, LaplacianAttention
from mmlaplace.ops import use_backend


class OnMap(torch.nn.Module):
    """An attention as a model of images: every pixel a token."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, image):
        return self.attention(image.flatten(2).transpose(1, 2), tuple(image.shape[2:]))


def test_attention_counted_by_hand():
    tokens, dims, marks, heads = 64, 32, 16, 2
    head = dims // heads
    attention = OnMap(
        LaplacianAttention(dims, heads, (8, 8), num_landmarks=marks, solver='cholesky')
    )
    counted = count_complexity(attention, (dims, 8, 8))
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


def test_mmengine_counts_the_same():
    backbone = MODELS.build(dict(type='LaplacianFormer', arch='micro', img_size=64)).eval()
    analyzer = FlopAnalyzer(backbone, torch.zeros(1, 3, 64, 64))
    analyzer.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    by_operator = analyzer.set_op_handle(**mmengine_flop_handles()).by_operator()
    # Norms and poolings, a few FLOPs an element, are no multiply-accumulates for us.
    products = ('conv', 'linear', 'matmul', 'cdist', 'laplacian_kernel', 'cholesky_inverse',
                'nystrom_attention')  # fmt: skip
    total = sum(by_operator[name] for name in products if name in by_operator)
    assert count_complexity(backbone, (3, 64, 64)).macs == pytest.approx(total, rel=1e-3)


@pytest.mark.slow
def test_the_tool_prints_ours_beside_the_published():
    def rows(*arguments):
        result = run_script(ROOT / 'tools/analysis_tools/get_flops.py', *arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    # A name and a path.
    printed = rows(
        'laplacianformer-tiny_8xb128_in1k',
        ROOT / 'configs/classification/soft/softpp-tiny_8xb128_in1k.py',
    )
    (row,) = [line for line in printed if 'laplacianformer-tiny' in line]
    for figure in ('12.06 M', '12.1 M', '2.06 G', '2.10 G', '2.30 G', '4.60 G'):
        assert figure in row
    (row,) = [line for line in printed if 'softpp-tiny' in line]
    assert '13.07 M' in row and '13.0 M' in row
    larger = rows('--match', 'laplacianformer-tiny', '--shape', 448, '--attn-cfg',
                  'num_landmarks=4')  # fmt: skip
    (row,) = [line for line in larger if 'laplacianformer-tiny' in line]
    assert '8.23 G' in row and '2.10 G' not in row
