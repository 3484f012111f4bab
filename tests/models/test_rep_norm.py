"""Norms of SLAB, which change from LayerNorm to BatchNorm: what their count of forwards means."""

import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import doubles
from test_backbones import build as backbone

from mmlaplace.models.layers import PRepBN, TransformerBlock

SOFTMAX = dict(type='SoftmaxAttention', embed_dims=8, num_heads=2, input_resolution=(3, 4))


def build(with_cp, **options):
    norm_cfg = dict(type='PRepBN', **options)
    return TransformerBlock(8, SOFTMAX, norm_cfg=norm_cfg, with_cp=with_cp).double()


def test_two_passes_before_a_backward_have_the_gradients_of_their_own_counts():
    found = []
    for with_cp in (False, True):
        torch.manual_seed(0)
        block = build(with_cp, steps=3)
        sum(block(x, (3, 4)).square().sum() for x in doubles(2, 2, 12, 8)).backward()
        found.append([parameter.grad for parameter in block.parameters()])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize('with_cp', [False, True])
def test_a_norm_goes_from_layer_norm_to_batch_norm_and_tokens(with_cp):
    block = build(with_cp, steps=4, warmup=2)
    norm, x = block.norm1, doubles(3, 12, 8).requires_grad_()
    torch.nn.init.constant_(norm.alpha, 0.5)
    got = []
    norm.register_forward_hook(lambda module, inputs, out: got.append(out))
    both = [F.batch_norm(x.flatten(0, 1), None, None, training=True).view_as(x) + x / 2,
            F.layer_norm(x, (8,), eps=1e-6)]  # fmt: skip
    for share in (0, 0, 0, 0.25, 0.5, 0.75, 1, 1):
        block(x, (3, 4)).sum().backward()
        for out in got:  # once, or again in the backward pass
            torch.testing.assert_close(out, share * both[0] + (1 - share) * both[1])
        got.clear()
    assert norm.bn.num_batches_tracked == 8
    norm.eval()
    mean, variance = norm.bn.running_mean, norm.bn.running_var
    expected = (x - mean) / (variance + 1e-5).sqrt() + x / 2
    torch.testing.assert_close(norm(x), expected)
    with pytest.raises(ValueError, match='got 0 and -1'):
        PRepBN(8, steps=0, warmup=-1)


@pytest.mark.parametrize('count', [0, 1, 375000])
def test_a_norm_with_frozen_statistics_trains_as_it_is_tested(count):
    norm_cfg = dict(type='PRepBN', steps=300000)
    model = backbone('PVT', norm_cfg=norm_cfg, norm_eval=True)
    norms = [module for module in model.modules() if isinstance(module, PRepBN)]
    for norm in norms:
        norm.forwards.fill_(count)
        torch.nn.init.constant_(norm.layer_norm.weight, 2.0)
        norm.bn.running_var.uniform_(0.5, 2)
    images = torch.randn(2, 3, 64, 64)
    outs = model.train()(images)
    torch.testing.assert_close(outs, model.eval()(images))
    sum(out.square().sum() for out in outs).backward()
    # DistributedDataParallel waits for one of each.
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert {norm.forwards.item() for norm in norms} == {count}


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_a_norm_of_halves_counts_on(dtype):
    # Where bf16 ends at 256, and fp16 at 2048.
    norm = PRepBN(8, steps=300000)
    norm.forwards.fill_(70001)
    norm = copy.deepcopy(norm).to(dtype)
    assert norm.bn.weight.dtype == dtype
    norm(torch.randn(2, 5, 8, dtype=dtype))
    assert norm.forwards.item() == 70002
