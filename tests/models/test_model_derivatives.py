"""Second derivatives and torch.func over every attention and backbone, as gradients by hand."""

import pytest
import torch
import torch.nn as nn
from conftest import doubles
from mmengine.registry import MODELS
from test_attentions import CASES, each, name_of
from test_attentions import build as attention_of
from test_backbones import BACKBONES
from test_backbones import build as backbone_of
from torch.autograd import gradgradcheck
from torch.func import functional_call, grad, vmap

HW, SMALL = (4, 5), (2, 3)
OF_FUSED_SOFTMAX = {
    f'{name}Attention'
    for name in ('CrossShaped', 'ELFATT', 'FaViT', 'Linformer', 'MiTA', 'Nystromformer', 'Softmax')
}
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


@pytest.mark.sampled(6, 6)
@each(SMOOTH)
def test_second_derivatives_are_those_of_small_steps(cfg, plain_softmax):
    attention = small(cfg)
    names, weights = zip(*attention.named_parameters())

    def forward(x, *weights):
        return functional_call(attention, dict(zip(names, weights)), (x, SMALL))

    leaves = [doubles(1, 6, 8).requires_grad_(), *weights]
    # Rounding of gradients, 1e-15, over the step of 1e-6, and the step times the next derivative.
    assert gradgradcheck(forward, leaves, atol=1e-5, rtol=1e-5, fast_mode=True)


@pytest.mark.sampled(4)
@each(SMOOTH)
def test_tokens_of_zeros_leave_second_derivatives_finite(cfg, plain_softmax):
    attention, x = small(cfg), doubles(1, 6, 8)
    for name, value in attention.named_parameters():  # so that queries and keys of zeros are zeros
        if name.endswith('bias'):
            nn.init.zeros_(value)
    x[:, :3] = 0
    leaves = [x.requires_grad_(), *attention.parameters()]
    (first,) = torch.autograd.grad(attention(x, SMALL).square().sum(), x, create_graph=True)
    for second in torch.autograd.grad(first.square().sum(), leaves, allow_unused=True):
        assert second is None or second.isfinite().all()


@pytest.mark.sampled(4)
@pytest.mark.parametrize('what', [*CASES, *BACKBONES], ids=name_of)
def test_gradients_of_single_images_are_those_of_a_loop(what):
    """vmap of the gradient of all weights."""
    of_maps = isinstance(what, str)
    model = moved(backbone_of(what) if of_maps else attention_of(what, embed_dims=16))
    if {type(module).__name__ for module in model.modules()} & OF_FUSED_SOFTMAX:
        pytest.importorskip('torch.nn.attention', reason='fused softmax has no rule for vmap')
    images, rest = (torch.randn(2, 3, 40, 56), ()) if of_maps else (torch.randn(3, 20, 16), (HW,))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights, image):
        outs = functional_call(model, (weights, dict(model.named_buffers())), (image[None], *rest))
        return sum(out.sin().sum() for out in outs)

    found = vmap(grad(loss), in_dims=(None, 0), randomness='same')(weights, images)
    for i, image in enumerate(images):
        for name, wanted in grad(loss)(weights, image).items():
            # Equal but for the order of fp32 sums, in units of the largest value.
            scale = max(wanted.abs().max().item(), 1e-3)
            torch.testing.assert_close(found[name][i], wanted, atol=2e-3 * scale, rtol=0)
