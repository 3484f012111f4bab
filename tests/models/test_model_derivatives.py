"""Second derivatives and torch.func over every attention and backbone, as gradients by hand."""

from importlib.util import find_spec

import pytest
import torch
import torch.nn as nn
from conftest import doubles
from mmengine.registry import MODELS
from test_attentions import CASES, each
from test_attentions import build as attention_of
from test_backbones import BACKBONES
from test_backbones import build as backbone_of
from torch.func import functional_call, grad, stack_module_state, vmap

HW = (4, 5)
SMALL = (2, 3)
OF_FUSED_SOFTMAX = {
    f'{name}Attention' for name in (
        'CrossShaped', 'ELFATT', 'FaViT', 'Linformer', 'MiTA', 'Nystromformer', 'Softmax')
}  # fmt: skip
# The gradient of SOFT's iteration is that of an inverse, which it is not where W is singular. Codes
# and buckets have steps. Performer's maximum is a constant, as in its authors' code. torch has no
# second derivative of its sampling between pixels.
WITHOUT = ('SOFTAttention', 'EcoFormerAttention', 'ReformerAttention', 'PerformerAttention')
SMOOTH = [c for c in CASES if c['type'] not in WITHOUT and not c.get('lepe_deformable')]


@pytest.fixture
def plain_softmax():
    """The only kernel of which torch has second derivatives on a CPU."""
    kernels = pytest.importorskip('torch.nn.attention')  # torch >= 2.3
    with kernels.sdpa_kernel(kernels.SDPBackend.MATH):
        yield


def small(cfg):
    # With the larger weights that linears have by themselves, so that steps do not cross a kink.
    attention = MODELS.build(dict(cfg, embed_dims=8, num_heads=2, input_resolution=SMALL))
    return moved(attention.double(), 0.1)


def moved(module, by=0.05):
    """Other weights, of which none is zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return module.eval()


@pytest.mark.sampled(4)
@each(SMOOTH)
def test_second_derivatives_are_those_of_small_steps(cfg, plain_softmax):
    attention, step = small(cfg), 1e-6
    x, weights = doubles(1, 6, 8).requires_grad_(), doubles(1, 6, 8)
    values = [x, *attention.parameters()]

    def first(**graph):
        return torch.autograd.grad((attention(x, SMALL) * weights).sum(), values, **graph)

    ways = [torch.randn_like(value) for value in values]
    slope = sum((grad * way).sum() for grad, way in zip(first(create_graph=True), ways))
    second = torch.autograd.grad(slope, values, allow_unused=True)
    sides = []
    for by in (step, -2 * step):
        with torch.no_grad():
            for value, way in zip(values, ways):
                value.add_(way, alpha=by)
        sides.append(first())
    for found, ahead, behind in zip(second, *sides):
        wanted = (ahead - behind) / (2 * step)
        found = torch.zeros_like(wanted) if found is None else found
        # Rounding of gradients, 1e-15, over the step, and the step times the next derivative.
        scale = max(wanted.abs().max().item(), 1.0)
        torch.testing.assert_close(found, wanted, atol=1e-5 * scale, rtol=0)


@pytest.mark.sampled(4)
@each(SMOOTH)
def test_tokens_of_zeros_leave_second_derivatives_finite(cfg, plain_softmax):
    attention = small(cfg)
    for module in attention.modules():  # so that queries and keys of zeros are zeros
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    x = doubles(1, 6, 8)
    x[:, :3] = 0
    x.requires_grad_()
    (first,) = torch.autograd.grad(attention(x, SMALL).square().sum(), x, create_graph=True)
    first.square().sum().backward()
    for name, value in [('x', x), *attention.named_parameters()]:
        assert value.grad is None or value.grad.isfinite().all(), name


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_alike(found, wanted):
    """Equal but for the order of fp32 sums, in units of the largest value."""
    scale = max(wanted.abs().max().item(), 1e-3)
    torch.testing.assert_close(found, wanted, atol=2e-3 * scale, rtol=0)


def needs_a_rule_for_vmap(attentions):
    if attentions & OF_FUSED_SOFTMAX and not find_spec('torch.nn.attention'):
        pytest.skip('before torch 2.3, fused softmax has no rule for vmap')


@pytest.mark.sampled(4)
@each(CASES)
def test_attentions_of_single_images_and_of_stacked_weights(cfg):
    needs_a_rule_for_vmap({cfg['type']})
    members = [moved(attention_of(cfg, embed_dims=16)) for _ in range(2)]
    model, images = members[0], torch.randn(3, 20, 16)
    found = vmap(lambda x: model(x[None], HW)[0], randomness='same')(images)
    assert_alike(found, torch.cat([model(x[None], HW) for x in images]))

    def loss(weights, buffers, images):
        return functional_call(model, (weights, buffers), (images, HW)).square().sum()

    stacked, axes = (*stack_module_state(members), images), dict(in_dims=(0, 0, None))
    found = vmap(grad(loss), randomness='same', **axes)(*stacked)
    for i, member in enumerate(members):
        for name, own in gradients(member, member(images, HW).square().sum()).items():
            assert_alike(found[name][i], own)


@pytest.mark.sampled(3)
@pytest.mark.parametrize('name', BACKBONES)
def test_backbones_of_single_images_and_their_gradients(name):
    model, images = moved(backbone_of(name)), torch.randn(2, 3, 40, 56)
    needs_a_rule_for_vmap({type(module).__name__ for module in model.modules()})

    def loss(weights, image):
        outs = functional_call(model, (weights, dict(model.named_buffers())), (image[None],))
        return sum(out.sin().sum() for out in outs)

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = vmap(grad(loss), in_dims=(None, 0))(weights, images)
    for i, image in enumerate(images):
        own = gradients(model, loss(dict(model.named_parameters()), image))
        for key, wanted in own.items():
            assert_alike(found[key][i], wanted)
