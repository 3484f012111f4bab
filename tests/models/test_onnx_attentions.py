"""Every attention and family as an ONNX graph of standard operators, in ONNX Runtime."""

import pytest
import torch
from conftest import fast_with, quiet_init, registered
from mmengine.registry import MODELS

from mmlaplace.models import BaseAttention

pytest.importorskip('onnx')
pytest.importorskip('onnxruntime')
from onnx_files import assert_alike, operators, session, to_onnx

ATTENTIONS = registered(BaseAttention)
# A sign or a bucket that rounding turns changes all of an image, so these are compared in fp64.
OF_SIGNS = ('EcoFormerAttention', 'ReformerAttention')
# Some, as each export takes seconds.
NEW_EXPORTER = ('PolaAttention', 'WindowAttention')
HW, OTHERS = (9, 10), [(1, 9, 10), (3, 11, 13), (2, 7, 16)]
needs_dynamo = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split('.')[:2])) < (2, 7),
    reason='the new exporter takes dynamic shapes since torch 2.7',
)


class OfMap(torch.nn.Module):
    """An attention of maps ``(B, C, H, W)``, from which the graph takes the sizes."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x.flatten(2).transpose(1, 2), tuple(x.shape[2:]))


def build(name):
    attention = MODELS.build(dict(type=name, embed_dims=32, num_heads=2, input_resolution=(8, 8)))
    for parameter in attention.parameters():  # no branch is zero
        parameter.data += 0.02 * torch.randn_like(parameter)
    return OfMap(attention).eval()


@torch.no_grad()
def check(name, sizes=OTHERS, dynamo=False):
    module, channels = build(name), 32
    dtype = torch.float64 if name in OF_SIGNS else torch.float32
    module.to(dtype)
    axes = {0: 'batch', 2: 'height', 3: 'width'}
    content = to_onnx(module, (torch.randn(2, channels, *HW, dtype=dtype),), dynamo, [axes])
    assert operators(content) <= {'', 'pkg.onnxscript.torch_lib'}
    run = session(content)
    for batch, *size in sizes:
        x = torch.randn(batch, channels, *size, dtype=dtype)
        expected = module(x)
        assert expected.isfinite().all()
        assert_alike(run(x), expected)


@pytest.mark.parametrize('name', fast_with(ATTENTIONS, 'LaplacianAttention'))
def test_an_attention_leaves_for_any_batch_and_size(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['LaplacianAttention', 'SOFTAttention'])
def test_sides_shorter_than_the_landmarks_have_fewer(name):
    check(name, [(1, 4, 5), (2, 20, 3)])


@needs_dynamo
@pytest.mark.slow
@pytest.mark.parametrize('name', NEW_EXPORTER)
def test_an_attention_leaves_by_the_new_exporter_for_any_batch_and_size(name):
    pytest.importorskip('onnxscript')
    check(name, dynamo=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    'name', ['EcoFormerAttention', 'LaplacianAttention', 'PolaAttention', 'WindowAttention']
)
def test_a_trace_can_be_saved(name, tmp_path):
    module, x = build(name), torch.randn(2, 32, *HW)
    trace = torch.jit.trace(module, (x,), check_trace=False)
    trace.save(str(tmp_path / 'trace.pt'))  # torch refuses to save autograd Functions
    assert_alike(torch.jit.load(str(tmp_path / 'trace.pt'))(x), module(x))


class LastMap(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, x):
        return self.backbone(x)[-1]


FAMILIES = ['LaplacianFormer', 'SOFT', 'PolaFormerSwin']


@pytest.mark.slow
@pytest.mark.parametrize('name', FAMILIES)
def test_a_backbone_leaves_for_any_batch(name):
    backbone = MODELS.build(dict(type=name, arch='micro', img_size=64))
    quiet_init(backbone)
    module = LastMap(backbone).eval()
    content = to_onnx(module, (torch.randn(2, 3, 64, 64),), dynamic=[{0: 'b'}])
    assert operators(content) == {''}
    run = session(content)
    with torch.no_grad():
        for batch in (1, 3):
            x = torch.randn(batch, 3, 64, 64)
            assert_alike(run(x), module(x))
