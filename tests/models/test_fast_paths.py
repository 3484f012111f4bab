"""An FFN and attentions do what their plain parts do, however a user changes these.

The plain parts are an FFN's layers, one after the other, and the PyTorch references of the ops.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from conftest import needs_torch, registered
from mmengine.registry import MODELS
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.utils import prune

from mmlaplace.models import BaseAttention
from mmlaplace.models.layers import FFN
from mmlaplace.ops import gelu_ffn, use_backend

HW = (12, 13)
# Relative to the largest value. Inverses of matrices of landmarks make the differences larger.
OF_LARGEST = 1e-3


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of 64 rows, whatever the channels, and FFNs compute again in their backward."""
    monkeypatch.setattr(gelu_ffn, 'BLOCK_BYTES', 1)
    monkeypatch.setattr(gelu_ffn, 'LARGE_BYTES', 0)


def weighted(model):
    """The parts whose weight a user may change in the same way, linears and convolutions."""
    return [part for part in model.modules() if isinstance(part, (nn.Linear, nn.Conv2d))]


def parameters(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


# Each changes a model, and returns what gradients are taken of.


def tensors(model):
    """Weights that another module computes, as a hypernetwork does, and FSDP in a way."""
    sources = []
    for part in weighted(model):
        sources.append(nn.Parameter(part.weight.detach().clone()))
        del part.weight
        part.weight = 1.5 * sources[-1]
    return sources + parameters(model)


def in_modes_of_their_own(model):
    """Dropout that is active in a model which is not, as Monte Carlo dropout has it."""
    model.eval()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.5
            part.train()
    return parameters(model)


def each_part(change, every=1):
    def changed(model):
        for part in weighted(model)[::every]:
            change(part)
        return parameters(model)

    return changed


def wrapped(model):
    """Linears in modules without a weight of their own, as those of adapters."""
    for part in [*model.modules()]:
        for name, child in [*part.named_children()]:
            if isinstance(child, nn.Linear):
                setattr(part, name, nn.Sequential(child))
    return parameters(model)


CHANGES = {
    'unchanged': parameters,
    'wrapped': wrapped,
    'tensors': tensors,
    'dropout of its own mode': in_modes_of_their_own,
    'pruned': each_part(lambda part: prune.l1_unstructured(part, 'weight', 0.5)),
    'hooked': each_part(lambda p: p.register_forward_hook(lambda module, inputs, out: 1.1 * out)),
    'hooked backward': each_part(
        lambda p: p.register_full_backward_hook(
            lambda _, inputs, outs: None if inputs[0] is None else (1.1 * inputs[0], *inputs[1:])
        )
    ),
    'partly frozen': each_part(lambda part: part.requires_grad_(False), every=2),
}
each_change = pytest.mark.parametrize('change', CHANGES.values(), ids=CHANGES)


def results(model, change):
    """The output and the gradients, twice, as a step of training may change what comes after."""
    leaves, found = change(model), []
    for _ in range(1 if change is tensors else 2):
        torch.manual_seed(1)
        x = torch.randn(2, HW[0] * HW[1], 16, requires_grad=True)
        out = model(x, HW)
        found += [out, *torch.autograd.grad(out.sin().sum(), [x, *leaves], allow_unused=True)]
    return found


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a - b).abs().max() <= OF_LARGEST * b.abs().max()


@each_change
@pytest.mark.parametrize('act', ['GELU', 'ReLU', nn.RReLU, nn.PReLU])
def test_an_ffn_is_its_layers_one_after_the_other(act, change):
    ffn = FFN(16, 4, drop_rate=0.1 if change is parameters else 0, act_cfg=dict(type=act))
    plain = copy.deepcopy(ffn)
    plain.is_one_op = lambda x: False
    assert_same(results(ffn, change), results(plain, change))


@pytest.mark.sampled(4)
@each_change
@pytest.mark.parametrize('name', registered(BaseAttention))
def test_an_attention_is_its_parts(name, change):
    attention = MODELS.build(dict(type=name, embed_dims=16, num_heads=2, input_resolution=HW))
    plain, found = copy.deepcopy(attention), results(attention, change)
    with use_backend('reference'):
        assert_same(found, results(plain, change))


@pytest.mark.parametrize(('large', 'most'), [(0, 400 * 8), (1 << 40, 400 * 32)])
def test_training_keeps_no_hidden_map_where_that_is_large(monkeypatch, large, most):
    monkeypatch.setattr(gelu_ffn, 'LARGE_BYTES', large)
    ffn, x, kept = FFN(8, 4), torch.randn(1, 400, 8, requires_grad=True), []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, torch.detach)
    with hooks:
        ffn(x, (20, 20))
    assert max(map(torch.numel, kept)) == most


@needs_torch(2, 3)  # FSDP on a CPU
@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::FutureWarning')
@pytest.mark.parametrize('act', ['GELU', 'ReLU'])  # one op, and layer by layer
def test_a_sharded_ffn_has_all_of_its_gradients(act, tmp_path):
    ffn, norms = FFN(16, 4, act_cfg=dict(type=act)), []
    plain = copy.deepcopy(ffn)
    plain.is_one_op = lambda x: False
    dist.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        for model in (ffn, plain):
            sharded = FullyShardedDataParallel(model, device_id=torch.device('cpu'))
            torch.manual_seed(1)
            sharded(torch.randn(1, HW[0] * HW[1], 16), HW).sin().sum().backward()
            squares = [p.grad.square().sum() for p in sharded.parameters() if p.grad is not None]
            norms.append(torch.stack(squares).sum())
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(*norms, rtol=1e-4, atol=0)  # of fp32 sums in two orders
