"""Models whose weights are packed for inference on a CPU."""

import copy
import pickle

import pytest
import torch
from conftest import registered
from mmengine.registry import MODELS
from torch import nn

import mmlaplace.cpu
from mmlaplace.cpu import Packed, PackedLinear, optimize
from mmlaplace.models import LaplacianFormer, PyramidBackbone
from mmlaplace.models.layers import FFN
from mmlaplace.ops.gelu_ffn import has_onednn

pytestmark = pytest.mark.skipif(not has_onednn(torch.float32), reason='torch has no oneDNN')


def built(name):
    zoo = MODELS.get(name).arch_zoo
    return MODELS.build(dict(type=name, arch='micro' if 'micro' in zoo else next(iter(zoo)))).eval()


@torch.inference_mode()
def assert_maps_are_close(packed, model, tolerance):
    images = torch.randn(2, 3, 64, 96)
    for found, expected in zip(packed(images), model(images), strict=True):
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', registered(PyramidBackbone))
def test_a_backbone_gives_the_same_maps(name):
    model = built(name)
    packed = optimize(model)
    kinds, before = ({type(part) for part in one.modules()} for one in (packed, model))
    assert nn.Linear not in kinds and nn.Linear in before
    # The same sums of fp32 in another order, through all layers.
    assert_maps_are_close(packed, model, 1e-3)


@pytest.mark.skipif(not has_onednn(torch.bfloat16), reason='this CPU has no bf16')
def test_in_bf16_it_gives_what_autocast_gives():
    model = built('LaplacianFormer')
    with torch.autocast('cpu', torch.bfloat16):
        # bf16 has 8 bits, and errors pass through all layers.
        assert_maps_are_close(optimize(model, torch.bfloat16), model, 0.05)


@pytest.mark.parametrize('rows', [0, 1, 700, 5000])
@pytest.mark.parametrize(('layer', 'arguments'), [(nn.Linear(16, 40), ()), (FFN(16, 4), ((1, 1),))])
@torch.inference_mode()
def test_any_number_of_tokens(layer, arguments, rows):
    packed, x = optimize(layer), torch.randn(1, rows, 16)
    assert isinstance(packed, Packed)
    # Sums of up to 64 products of order 1.
    torch.testing.assert_close(packed(x, *arguments), layer(x, *arguments), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r'tokens \(..., 16\), got shape \(3, 15\)'):
        packed(torch.randn(3, 15), *arguments)


def test_layers_with_hooks_and_of_other_classes_stay():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    hooked, patched = nn.Linear(4, 4), nn.Linear(4, 4)
    hooked.register_forward_hook(lambda module, inputs, out: -out)
    patched.forward = lambda x: 3 * x
    model = nn.Sequential(nn.Linear(4, 4), hooked, Doubled(4, 4), patched)
    packed, x = optimize(model), torch.randn(3, 4)
    assert [type(part) for part in packed] == [PackedLinear, nn.Linear, Doubled, nn.Linear]
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), model(x), rtol=1e-5, atol=1e-5)  # of 4 products


def test_the_model_itself_changes_where_that_is_asked_for_and_a_copy_gives_the_same():
    model, x = nn.Sequential(nn.Linear(4, 5)), torch.randn(2, 4)
    assert optimize(model, inplace=True) is model and type(model[0]) is PackedLinear
    with torch.inference_mode():
        assert torch.equal(copy.deepcopy(model)(x), model(x))


@pytest.mark.slow
def test_a_graph_breaks_at_packed_layers():
    layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 5))
    model, x = optimize(layers), torch.randn(2, 4)
    with torch.no_grad():
        # The same products; GELU by the same formula in other code.
        torch.testing.assert_close(torch.compile(model)(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ('act', 'quoted'),
    [
        (lambda model: model.half(), 'float32 on the CPU, and it cannot become torch.float16'),
        (lambda model: model.state_dict(), 'no weights to save'),
        (pickle.dumps, 'no weights to save'),
        (lambda model: model.load_state_dict({'0.weight': torch.ones(5, 4)}), 'load them before'),
        (lambda model: model(torch.randn(2, 4, requires_grad=True)), 'has no gradients'),
        (lambda model: torch.export.export(model, (torch.randn(2, 4),)), 'cannot be exported'),
        (lambda model: torch.jit.trace(model, torch.randn(2, 4)), 'cannot be exported'),
        (lambda _: optimize(nn.Linear(2, 2), torch.half), 'one of .*got torch.float16'),
        (lambda _: optimize(nn.Linear(2, 2).double()), 'weight is torch.float64 on cpu'),
    ],
)
def test_what_packed_weights_cannot_do_is_said(act, quoted):
    with pytest.raises((RuntimeError, ValueError), match=quoted):
        act(optimize(nn.Sequential(nn.Linear(4, 5))))


def test_a_cpu_without_it_is_told(monkeypatch):
    monkeypatch.setattr(mmlaplace.cpu, 'has_onednn', lambda dtype: False)
    with pytest.raises(RuntimeError, match='has no oneDNN for torch.float32'):
        optimize(LaplacianFormer('micro'))
