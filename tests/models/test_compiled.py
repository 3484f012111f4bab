"""Backbones inside torch.compile: one graph, and the values and gradients of the eager model."""

import pytest
import torch
from conftest import quiet_init, registered
from mmengine.registry import MODELS

from mmlaplace.models.backbones.base import PyramidBackbone

pytestmark = pytest.mark.skipif(
    not hasattr(torch.amp, 'is_autocast_available'),
    reason='before torch 2.4, torch.compile traces no context managers of libraries',
)
BACKBONES = registered(PyramidBackbone)


def build(name, stages=None):
    """The smallest arch with one block a stage, cut off after ``stages`` stages; None keeps all."""
    zoo = MODELS.get(name).arch_zoo
    arch = dict(zoo[min(zoo, key=lambda arch: sum(zoo[arch]['depths']))])
    arch['depths'] = [1] * len(arch['depths'])
    stages = stages or len(arch['depths'])
    options = dict(out_indices=tuple(range(stages)), drop_path_rate=0.0)
    backbone = MODELS.build(dict(type=name, arch=arch, img_size=64, **options))
    quiet_init(backbone)
    del backbone.stages[stages:]
    return backbone


def outputs_and_gradients(model, images, weights):
    outs = model(images)
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(out.shape, generator=generator) for out in outs]
    return outs, torch.autograd.grad(outs, weights, grads)


def check(name, backend, stages=None):
    torch._dynamo.reset()
    backbone, images = build(name, stages).train(), torch.randn(2, 3, 64, 96)
    compiled = torch.compile(backbone, backend=backend, fullgraph=True)
    weights = [weight for weight in backbone.parameters() if weight.requires_grad]
    ours, theirs = (outputs_and_gradients(m, images, weights) for m in (compiled, backbone))
    for a, b in zip(ours[0], theirs[0]):
        # Another order of sums in every layer of fp32.
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
    largest = max(grad.abs().max().item() for grad in theirs[1])
    for a, b in zip(ours[1], theirs[1]):
        # Sums over all tokens that cancel, to nothing where a shift changes no difference (the bias
        # of SOFT's queries, which are its keys).
        torch.testing.assert_close(a, b, atol=2e-3 * b.abs().max().item() + 1e-4 * largest, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize('name', BACKBONES)
def test_trains_in_one_graph(name):
    check(name, 'aot_eager')  # traces the backward too, without a minute of compiling


@pytest.mark.slow
@pytest.mark.parametrize('name', ['LaplacianFormer', 'SOFTPlusPlus', 'PolaFormerPVT'])
def test_inductors_code_trains_like_the_eager_model(name):
    check(name, 'inductor', stages=2)  # each is compiled by itself, for most of a minute
