"""Second derivatives, as gradient penalties take them, of every registered attention."""

import pytest
import torch
import torch.nn as nn
from mmengine.registry import MODELS
from test_attentions import CASES, each

attention_kernels = pytest.importorskip('torch.nn.attention')  # torch >= 2.3
HW = (2, 3)
# The gradient of SOFT's iteration is that of an inverse, which it is not where W is singular. Codes
# and buckets have steps. Performer's maximum is a constant, as in its authors' code. torch has no
# second derivative of its sampling between pixels.
WITHOUT = ('SOFTAttention', 'EcoFormerAttention', 'ReformerAttention', 'PerformerAttention')
SMOOTH = [c for c in CASES if c['type'] not in WITHOUT and not c.get('lepe_deformable')]


@pytest.fixture(autouse=True)
def _plain_softmax():
    # The only kernel that torch gives second derivatives on a CPU.
    with attention_kernels.sdpa_kernel(attention_kernels.SDPBackend.MATH):
        yield


def small(cfg):
    # With the larger weights that linears have by themselves, so that steps do not cross a kink.
    attention = MODELS.build(dict(cfg, embed_dims=8, num_heads=2, input_resolution=HW))
    attention.double().eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return attention


@pytest.mark.sampled(4)
@each(SMOOTH)
def test_they_are_those_of_small_steps(cfg):
    attention, step = small(cfg), 1e-6
    x = torch.randn(1, 6, 8, dtype=torch.float64, requires_grad=True)
    values = [x, *attention.parameters()]
    weights = torch.randn(1, 6, 8, dtype=torch.float64)

    def first(**graph):
        return torch.autograd.grad((attention(x, HW) * weights).sum(), values, **graph)

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
def test_tokens_of_zeros_leave_them_finite(cfg):
    attention = small(cfg)
    for module in attention.modules():  # so that queries and keys of zeros are zeros
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    x[:, :3] = 0
    x.requires_grad_()
    (first,) = torch.autograd.grad(attention(x, HW).square().sum(), x, create_graph=True)
    first.square().sum().backward()
    for name, value in [('x', x), *attention.named_parameters()]:
        assert value.grad is None or value.grad.isfinite().all(), name
