"""How a backbone is distilled: rates, decay, clipping, passes over the images, and the losses."""

import copy
import itertools
import math
from unittest import mock

import pytest
import torch
from mmengine.dataset import DefaultSampler
from test_hybrids import HOSTS, build, images, pair, tasks
from torch import nn
from torch.utils.data import DataLoader

from mmlaplace import linearizing
from mmlaplace.linearizing import distilling, hybrids, losses


def fitted(loss_of, steps, layer=None, **schedule):
    """A layer after some steps, and the states of these."""
    layer, states = layer or nn.Linear(4, 4), []
    with mock.patch.object(distilling, 'EVERY', 1):
        linearizing.fit(
            layer,
            [*layer.parameters()],
            lambda step: loss_of(layer, step),
            itertools.count,
            steps,
            linearizing.Schedule(**schedule),
            save=states.append,
        )
    return layer, states


def test_the_rate_rises_in_a_tenth_of_the_steps_and_falls_by_a_cosine():
    _, states = fitted(lambda layer, step: layer.weight.square().sum(), 40, lr=0.5)
    rates = [state['optimizer']['param_groups'][0]['lr'] / 0.5 for state in states]
    assert rates[:4] == [0.25, 0.5, 0.75, 1]
    assert rates[4] == 1 and rates[22] == pytest.approx((1 + 0.01) / 2)  # the middle of the fall
    assert rates[-1] < 0.02 and rates[4:] == sorted(rates[4:], reverse=True)


def test_matrices_decay_and_vectors_do_not():
    start = nn.Linear(4, 4)
    before = {name: value.clone() for name, value in start.state_dict().items()}
    layer, _ = fitted(
        lambda layer, step: 0 * layer(torch.ones(1, 4)).sum(), 1, start, lr=0.1, weight_decay=0.5
    )
    torch.testing.assert_close(layer.weight.data, before['weight'] * (1 - 0.1 * 0.5))
    assert torch.equal(layer.bias.data, before['bias'])


def test_a_batch_with_a_huge_loss_weighs_no_more_than_one_with_a_large_loss():
    """Its gradient is clipped, so that it does not hold back the steps that follow."""
    weights = []
    for size in (1e3, 1e6):
        torch.manual_seed(0)
        layer, _ = fitted(
            lambda layer, step, size=size: (
                (size if step == 0 else 1.0) * layer(torch.eye(4)).square().sum()
            ),
            10,
        )
        weights.append(layer.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-7)  # of fp32


def test_every_pass_over_the_images_has_an_order_of_its_own():
    data = torch.arange(20)
    model = mock.Mock(data_preprocessor=lambda batch, training: dict(inputs=batch))
    loader = DataLoader(data, 5, sampler=DefaultSampler(data, shuffle=True, seed=1))
    batches = distilling.image_batches(model, loader)(0)
    first, second, third = (torch.cat([*itertools.islice(batches, 4)]).tolist() for _ in range(3))
    assert sorted(first) == sorted(second) == sorted(third) == data.tolist()
    assert first != second != third != first


def test_the_logits_are_compared_by_the_divergence_from_the_old_ones_in_each_image():
    new, old, _ = tasks()
    x = torch.randn(4, 3, 64, 64)
    with torch.no_grad():
        for model in (new, old):
            model.head.weight.mul_(20)  # so that the two directions of the divergence differ
        loss = linearizing.whole_loss(new, old, x)
        maps = [model.backbone(x) for model in (new, old)]
        found, wanted = (
            model.head(model.neck(m)).softmax(-1) for model, m in zip((new, old), maps)
        )
        of_images = [
            sum(float(p) * math.log(p / q) for p, q in zip(right, guess))
            for right, guess in zip(wanted, found)
        ]
        of_maps = hybrids.maps_loss(*maps)
    assert max(of_images) > 0.1
    assert (loss - of_maps).item() == pytest.approx(sum(of_images) / 4, rel=1e-3)  # logs of fp32


def test_in_shifted_windows_an_attention_that_takes_masks_learns_with_the_old_ones():
    """A copy of the old attentions has nothing to learn."""
    old = build(HOSTS['Swin'])
    places = list(linearizing.softmax_places(old))
    x = torch.randn(1, 3, 64, 64)
    with losses.calls_recorded(old, places) as calls, torch.no_grad():
        old(x)
    assert any('mask' in options for _, options, _ in calls.values())
    # Squares of roundings of fp32.
    assert linearizing.layer_loss(copy.deepcopy(old), old, places, x) < 1e-12


def test_an_attention_learns_from_other_images_than_those_that_measure_it():
    old, _, places = pair('SigLIP')
    batches, place = images(), places[0]
    seen = hybrids.passes_of(old, [place], batches, steps=1)
    others = [*batches[: hybrids.LEARN], *images(hybrids.MEASURE, size=32)]
    again = hybrids.passes_of(old, [place], others, steps=1)
    assert len(seen.calls[place]) == hybrids.LEARN and len(seen.maps) == hybrids.MEASURE
    for one, other in zip(seen.calls[place], again.calls[place], strict=True):
        torch.testing.assert_close(one[2], other[2])
    assert seen.maps[0][0].shape != again.maps[0][0].shape


def test_the_most_harmful_block_that_the_budget_can_spare_stays_softmax():
    costs = dict(
        whole=dict(softmax=20.0, linear=15.0),
        softmax=dict(a=2.0, b=2.0, c=4.0),
        linear=dict(a=1.0, b=1.0, c=1.0),
    )
    harms = dict(a=0.01, b=0.02, c=0.1)
    # c is needed for the budget, and one of the others.
    assert linearizing.choose(harms, costs, budget=0.8).keep == ['b']
