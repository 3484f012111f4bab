"""Every backbone leaves PyTorch by PyTorch's own exporters, without our export tool."""

import io
import warnings

import pytest
import torch
from conftest import registered
from mmengine.registry import MODELS

from mmlaplace.models import PyramidBackbone

VERSION = tuple(map(int, torch.__version__.split('.')[:2]))
TOLERANCE = 1e-5  # of the largest value: products of fp32 in another order
# H-ViT³ takes half a minute, in layers of MLLA and an attention of test_onnx_attentions.py.
BACKBONES = [name for name in registered(PyramidBackbone) if MODELS.get(name).arch_zoo]
BACKBONES.remove('HViT3')


def published(name):
    """The widths and heads of the smallest published size, with a block of each kind a stage."""
    cls = MODELS.get(name)
    arch = next(arch for key, arch in cls.arch_zoo.items() if key != 'micro')
    # Every second block of Swin has shifted windows, where a map has several.
    depths = (2, 1, 2, 1) if 'Swin' in name else (1, 1, 1, 1)
    return cls(arch=dict(arch, depths=depths[: len(arch['depths'])])).eval()


def by_onnx(dynamo):
    def leave(backbone, image):
        runtime = pytest.importorskip('onnxruntime')
        pytest.importorskip('onnxscript' if dynamo else 'onnx')
        file = io.BytesIO()
        if dynamo:
            torch.onnx.export(backbone, (image,), dynamo=True, verbose=False).save(file)
        else:
            # torch 2.1 has no argument for the exporter that it only has.
            new = 'dynamo' in torch.onnx.export.__code__.co_varnames
            torch.onnx.export(backbone, (image,), file, **dict(dynamo=False) if new else {})
        engine = runtime.InferenceSession(file.getvalue(), providers=['CPUExecutionProvider'])
        (name,) = (value.name for value in engine.get_inputs())
        return [torch.from_numpy(out) for out in engine.run(None, {name: image.numpy()})]

    return leave


WAYS = {
    'torch.jit.trace': lambda backbone, image: torch.jit.trace(backbone, image)(image),
    'torch.export': lambda b, image: torch.export.export(b, (image,)).module()(image),
    'torch.onnx by a trace': by_onnx(dynamo=False),
    'torch.onnx by torch.export': by_onnx(dynamo=True),
}
SINCE = {'torch.export': (2, 6), 'torch.onnx by torch.export': (2, 7)}


# Each of the newer exporter takes ten seconds. The tests of OpenVINO have it for all backbones.
BY_NEWER_ONNX = ('LaplacianFormer', 'SOFT', 'PolaFormerSwin', 'XCiTBackbone')
CASES = [(name, way) for name in BACKBONES for way in list(WAYS)[:-1]]
CASES += [(name, list(WAYS)[-1]) for name in BY_NEWER_ONNX]


@pytest.mark.slow
@pytest.mark.sampled(20, 20)
@pytest.mark.parametrize(('name', 'way'), CASES)
def test_a_backbone_leaves_as_it_is(name, way):
    if SINCE.get(way, (2, 1)) > VERSION:
        pytest.skip(f'{way} of this torch, {torch.__version__}, is not the one of today')
    backbone, image = published(name), torch.randn(1, 3, 224, 224)
    # With gradients, as they are without a word: PyTorch then takes other kernels of softmax.
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of sizes that a trace compares
        expected, outs = backbone(image), WAYS[way](backbone, image)
    assert len(outs) == len(expected)
    for out, wanted in zip(outs, expected):
        assert (out - wanted).abs().max() <= TOLERANCE * wanted.abs().max()


@pytest.mark.skipif(VERSION < (2, 6), reason='torch.export then gives graphs without gradients')
def test_an_exported_attention_has_the_gradients_of_its_signs():
    cfg = dict(type='EcoFormerAttention', embed_dims=32, num_heads=2, input_resolution=(4, 4))
    attention, x = MODELS.build(cfg), torch.randn(2, 16, 32)
    exported = torch.export.export(attention, (x, (4, 4))).module()
    found = []
    for function in (attention, exported):
        x.requires_grad_()  # it did not when the graph was made
        out, leaves = function(x, (4, 4)), dict(function.named_parameters(), x=x)
        grads = torch.autograd.grad(out.square().sum(), leaves.values())
        found.append(dict(zip(leaves, grads), out=out))
    assert all(value.any() for value in found[0].values())
    # Sums in another order; some weights cancel out in most of the gradient.
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-3)
