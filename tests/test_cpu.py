"""Models whose weights are packed for inference on a CPU."""

import copy
import pickle

import pytest
import torch
from conftest import registered
from mmengine.model import BaseModel, ImgDataPreprocessor
from mmengine.registry import MODELS
from torch import nn
from torch.autograd import forward_ad

import mmlaplace.cpu
from mmlaplace.cpu import Packed, PackedFFN, PackedLinear, optimize
from mmlaplace.models import (
    BaseAttention,
    EcoFormerAttention,
    LaplacianFormer,
    PyramidBackbone,
    ScaledCosineAttention,
)
from mmlaplace.models.layers import FFN
from mmlaplace.ops.gelu_ffn import has_onednn

SIZES = dict(num_heads=2, input_resolution=(8, 8))
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
    assert isinstance(packed, Packed) and not packed.training
    # Sums of up to 64 products of order 1.
    torch.testing.assert_close(packed(x, *arguments), layer(x, *arguments), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r'tokens \(..., 16\), got shape \(3, 15\)'):
        packed(torch.randn(3, 15), *arguments)


def test_layers_of_other_classes_and_with_parts_of_their_own_stay():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    scaled = nn.Linear(4, 4)
    scaled.scale = nn.Parameter(torch.ones(4))  # which its model reads
    model = nn.Sequential(nn.Linear(4, 4), Doubled(4, 4), scaled)
    packed, x = optimize(model), torch.randn(3, 4)
    assert [type(part) for part in packed] == [PackedLinear, Doubled, nn.Linear]
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), model(x), rtol=1e-5, atol=1e-5)  # of 4 products


@pytest.mark.parametrize('nested', [True, False])
def test_torchs_encoder_keeps_the_linears_that_it_reads(nested):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    layer.self_attn.out_proj = nn.Linear(16, 16)  # torch reads its weights too
    model = nn.ModuleDict(dict(encoder=nn.TransformerEncoder(layer, 2), head=nn.Linear(16, 4)))
    model['encoder'].use_nested_tensor = nested
    packed, x = optimize(model), torch.randn(2, 5, 16)
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    model.eval()
    assert type(packed['head']) is PackedLinear
    assert type(packed['encoder'].layers[0].linear1) is nn.Linear
    with torch.inference_mode():  # in which torch computes with the weights themselves
        found, expected = (
            one['head'](one['encoder'](x, src_key_padding_mask=padding)) for one in (packed, model)
        )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # of 32 products


class ReadsWeights(nn.Module):
    """A module that computes with the weights of its linear, as BEiT does."""

    def __init__(self, channels):
        super().__init__()
        self.linear = nn.Linear(channels, 8)

    def forward(self, x):
        return nn.functional.linear(x, self.linear.weight, self.linear.bias)


@pytest.mark.parametrize('channels', [16, 80], ids=['as it is', 'ordered'])
def test_a_weight_that_is_read_is_the_weight_and_cannot_be_changed(channels):
    model, x = ReadsWeights(channels), torch.randn(3, channels)
    packed = optimize(model)
    with torch.no_grad():
        assert torch.equal(packed(x), model(x))
    with pytest.raises(RuntimeError, match='inference tensor'):
        nn.init.zeros_(packed.linear.weight)
    with pytest.raises(RuntimeError, match='nference tensor'):
        packed(x.requires_grad_()).sum().backward()


def test_the_model_itself_changes_where_that_is_asked_for():
    linear = nn.Linear(4, 5)
    model, x = nn.ModuleDict(dict(one=linear, other=linear)), torch.randn(2, 4)
    assert optimize(model, inplace=True) is model and type(model['one']) is PackedLinear
    assert model['one'] is model['other']  # a layer with two names stays one
    with torch.inference_mode():
        torch.testing.assert_close(model['one'](x), linear(x), rtol=1e-5, atol=1e-5)


def test_the_original_stays_in_training_and_what_it_learns_does_not_reach_the_packed_one():
    model = nn.Sequential(nn.Linear(4, 80), nn.Dropout(0.9), nn.Linear(80, 4)).train()
    packed, x = optimize(model), torch.randn(3, 4)
    assert model.training and not any(part.training for part in packed.modules())
    before = copy.deepcopy(model).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        torch.testing.assert_close(packed(x), before(x), rtol=1e-5, atol=1e-5)  # of 80 products


@pytest.mark.parametrize(
    'layer', [nn.Linear(4, 5), nn.Linear(80, 5), FFN(80, 2)], ids=['as it is', 'ordered', 'FFN']
)
@torch.inference_mode()
def test_a_copy_has_hooks_and_a_forward_of_its_own(layer):
    def result(model):
        return model['layer'](x, (3, 1)) if isinstance(layer, FFN) else model['layer'](x)

    model, x = optimize(nn.ModuleDict(dict(layer=layer))), torch.randn(1, 3, len(layer_in(layer)))
    hooked, patched = copy.deepcopy(model), copy.deepcopy(model)
    expected = result(model)
    assert torch.equal(result(hooked), expected)
    hooked['layer'].register_forward_hook(lambda module, inputs, out: 10 * out)
    patched['layer'].forward = lambda *inputs: inputs[0]
    assert torch.equal(result(copy.deepcopy(hooked)), 10 * expected)
    assert torch.equal(result(copy.deepcopy(patched)), x)
    if isinstance(layer, nn.Linear):
        hooked['layer'].bias.add_(1)
        torch.testing.assert_close(result(hooked), 10 * (expected + 1))
    assert torch.equal(result(model), expected)


def layer_in(layer):
    """A row of the weight that gets the tokens."""
    return (layer.layers[0] if isinstance(layer, FFN) else layer).weight[0]


@torch.inference_mode()
@pytest.mark.parametrize('approximate', ['none', 'tanh'])
@pytest.mark.parametrize('bias', [True, False])
def test_a_packed_ffn_has_the_gelu_of_its_config_and_may_lack_biases(approximate, bias):
    ffn = FFN(32, 4, act_cfg=dict(type='GELU', approximate=approximate)).eval()
    if not bias:
        ffn.layers[0].bias = ffn.layers[3].bias = None
    packed, x = optimize(ffn), 3 * torch.randn(1, 9000, 32)
    assert type(packed) is PackedFFN
    # Sums of up to 128 products of order 1. The two forms of GELU differ by up to 5e-4.
    torch.testing.assert_close(packed(x, (90, 100)), ffn(x, (90, 100)), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not has_onednn(torch.bfloat16), reason='this CPU has no bf16')
@torch.inference_mode()
@pytest.mark.parametrize('kind', [EcoFormerAttention, ScaledCosineAttention])
def test_parts_that_compute_in_fp32_under_any_autocast_do_so_in_bf16_too(kind):
    attention, x = kind(64, 2, (14, 14)).eval(), torch.randn(2, 196, 64)
    exact, packed = attention(x, (14, 14)), optimize(attention, torch.bfloat16)
    with torch.autocast('cpu', torch.bfloat16):
        of_autocast, found = (
            (model(x, (14, 14)) - exact).norm() / exact.norm() for model in (attention, packed)
        )
    # Only sums have another order. In bf16, signs of queries make it three times as large.
    assert found < 1.1 * of_autocast
    dtypes = {name: part.dtype for name, part in packed.named_modules() if isinstance(part, Packed)}
    full = [name for name, dtype in dtypes.items() if dtype == torch.float32]
    assert full and all(name.startswith(('qkv', 'offset_bias')) for name in full)
    assert dtypes['proj'] == torch.bfloat16


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', registered(BaseAttention))
@torch.inference_mode()
def test_no_attention_hides_that_it_computes_a_linear_in_fp32(name):
    attention, found = MODELS.build(dict(type=name, embed_dims=32, **SIZES)).eval(), []

    def note(linear, inputs):
        if not torch.is_autocast_cpu_enabled():
            found.extend(path for path, part in attention.named_modules() if part is linear)

    for part in attention.modules():
        if type(part) is nn.Linear:
            part.register_forward_pre_hook(note)
    with torch.autocast('cpu', torch.bfloat16):
        attention(torch.randn(1, 64, 32), (8, 8))
    assert {path.partition('.')[0] for path in found} == {*attention.parts_in_fp32}


@pytest.mark.skipif(not has_onednn(torch.bfloat16), reason='this CPU has no bf16')
def test_a_model_of_bf16_is_optimized_for_bf16_or_told_how():
    model, images = LaplacianFormer('micro').eval().bfloat16(), torch.randn(1, 3, 64, 64)
    with pytest.raises(ValueError, match=r'qkv is torch.bfloat16, .* pass dtype=torch.bfloat16'):
        optimize(model)
    packed = optimize(model, torch.bfloat16)
    with torch.inference_mode():
        maps = [one(images.bfloat16())[-1] for one in (packed, model)]
    torch.testing.assert_close(*maps, rtol=0.05, atol=0.05)  # bf16 has 8 bits


@pytest.mark.parametrize('inplace', [True, False])
def test_a_model_that_cannot_be_optimized_stays_as_it_was(inplace):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4).bfloat16()))
    with pytest.raises(ValueError, match=r'the weight of 1.0 is torch.bfloat16'):
        optimize(model, inplace=inplace)
    assert model.training and type(model[0]) is type(model[1][0]) is nn.Linear


class Detector(BaseModel):
    """A model of mmengine with a convolution before its linear."""

    def __init__(self):
        super().__init__(ImgDataPreprocessor([1, 2, 3], [4, 5, 6]))
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.Linear(4, 4)))

    def forward(self, inputs, data_samples=None, mode='tensor'):
        return self.backbone(inputs)


@pytest.mark.parametrize(
    'convert',
    [
        lambda model: model.half(),
        lambda model: model.backbone.bfloat16(),
        lambda model: copy.deepcopy(model).double(),
        lambda model: model.to('meta'),
        lambda model: model.load_state_dict({'backbone.0.weight': torch.ones(4, 3, 1, 1)}),
        lambda model: model.backbone.load_state_dict({'0.bias': torch.ones(4)}, strict=False),
    ],
)
def test_what_is_refused_changes_nothing(convert):
    model = optimize(Detector())
    before = [(tensor, tensor.clone()) for tensor in (*model.parameters(), *model.buffers())]
    with pytest.raises(RuntimeError, match='packed its weights for inference'):
        convert(model)
    for tensor, value in before:
        assert tensor.dtype == value.dtype and torch.equal(tensor, value)
    images = model.data_preprocessor(dict(inputs=torch.ones(1, 3, 4, 4)))['inputs']
    with torch.inference_mode():
        assert images.device.type == 'cpu' and model.float()(images).shape == (1, 4, 4, 4)


@pytest.mark.slow
def test_a_graph_breaks_at_packed_layers():
    layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 5))
    model, x = optimize(layers), torch.randn(2, 4)
    with torch.no_grad():
        # The same products; GELU by the same formula in other code.
        torch.testing.assert_close(torch.compile(model)(x), model(x), rtol=1e-5, atol=1e-5)


def jvp(function):
    return torch.func.jvp(function, (torch.randn(2, 4),), (torch.randn(2, 4),))


def dual(function):
    with torch.no_grad(), forward_ad.dual_level():
        return function(forward_ad.make_dual(torch.randn(2, 4), torch.randn(2, 4)))


def test_derivatives_that_do_not_pass_through_packed_layers_are_right():
    model, x = optimize(nn.Sequential(nn.Linear(4, 5))), torch.randn(2, 4)
    out, tangent = jvp(lambda y: (model(x).sum() * y, torch.vmap(model)(x).sum() * y))
    assert all(part.abs().sum() > 0 for part in (*out, *tangent))


@pytest.mark.parametrize(
    ('act', 'quoted'),
    [
        (lambda model: model.half(), 'float32 on the CPU, and it cannot become torch.float16'),
        (lambda model: model.state_dict(), 'no weights to save'),
        (pickle.dumps, 'no weights to save'),
        (lambda model: model.load_state_dict({'0.weight': torch.ones(5, 4)}), 'load them before'),
        (lambda model: model(torch.randn(2, 4, requires_grad=True)), 'has no gradients'),
        (lambda model: jvp(model), 'has no forward-mode derivatives'),
        (lambda model: jvp(torch.vmap(model)), 'has no forward-mode derivatives'),
        (lambda model: torch.func.jacfwd(model)(torch.randn(4)), 'no forward-mode derivatives'),
        (lambda model: dual(model), 'has no forward-mode derivatives'),
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
