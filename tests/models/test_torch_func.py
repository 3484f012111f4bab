"""torch.func over every registered attention and backbone: the same as a loop by hand."""

from importlib.util import find_spec

import pytest
import torch
from test_attentions import CASES, each
from test_attentions import build as attention_of
from test_backbones import BACKBONES
from test_backbones import build as backbone_of
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

HW = (4, 5)
OF_FUSED_SOFTMAX = [
    f'{name}Attention' for name in ('FaViT', 'Linformer', 'Nystromformer', 'Softmax')
]


def moved(module):
    """Other weights, of which none is zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return module.eval()


def weighted_sum(outs):
    ramps = [torch.linspace(-1, 1, out[0].numel()).view(out[0].shape) for out in outs]
    return sum((out * ramp).sum() for out, ramp in zip(outs, ramps))


def gradients(module, function):
    module.zero_grad()
    function(module).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_alike(found, wanted):
    """Equal but for the order of fp32 sums, in units of the largest value."""
    scale = max(wanted.abs().max().item(), 1e-3)
    torch.testing.assert_close(found, wanted, atol=2e-3 * scale, rtol=0)


@pytest.mark.sampled(4)
@each(CASES)
def test_attentions_of_single_images_and_of_stacked_weights(cfg):
    if cfg['type'] in OF_FUSED_SOFTMAX and not find_spec('torch.nn.attention'):
        pytest.skip('before torch 2.3, fused softmax has no rule for vmap')
    members = [moved(attention_of(cfg, embed_dims=16)) for _ in range(2)]
    model, images = members[0], torch.randn(3, 20, 16)
    found = vmap(lambda x: model(x[None], HW)[0], randomness='same')(images)
    assert_alike(found, torch.cat([model(x[None], HW) for x in images]))
    x = images[:1].clone().requires_grad_()
    (wanted,) = torch.autograd.grad(model(x, HW)[0, 0, 0], x)
    assert_alike(jacrev(lambda x: model(x, HW)[0, 0, 0])(images[:1]), wanted)

    weights, buffers = stack_module_state(members)

    def attended(weights, buffers, images):
        return functional_call(model, (weights, buffers), (images, HW))

    def loss(weights, buffers, images):
        return attended(weights, buffers, images).square().sum()

    found = vmap(attended, in_dims=(0, 0, None), randomness='same')(weights, buffers, images)
    assert_alike(found, torch.stack([member(images, HW) for member in members]))

    found = vmap(grad(loss), in_dims=(0, 0, None), randomness='same')(weights, buffers, images)
    for i, member in enumerate(members):
        for name, own in gradients(member, lambda m: m(images, HW).square().sum()).items():
            assert_alike(found[name][i], own)


@pytest.mark.sampled(3)
@pytest.mark.parametrize('name', BACKBONES)
def test_backbones_of_single_images_and_of_stacked_weights(name):
    members = [moved(backbone_of(name)) for _ in range(2)]
    model, images = members[0], torch.randn(2, 3, 40, 56)
    alone = [model(image[None]) for image in images]
    for out, *wanted in zip(vmap(lambda x: model(x[None]))(images), *alone):
        assert_alike(out, torch.stack(wanted))

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def loss(weights, image):
        return weighted_sum(functional_call(model, (weights, buffers), (image[None],)))

    found = vmap(grad(loss), in_dims=(None, 0))(weights, images)
    for i, image in enumerate(images):
        own = gradients(model, lambda m, image=image: weighted_sum(m(image[None])))
        for key, gradient in own.items():
            assert_alike(found[key][i], gradient)
