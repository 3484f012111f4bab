"""Hybrids keep those softmax blocks that matter, by measured harms and costs."""

import copy
import json
from unittest import mock

import pytest
import torch
from conftest import quiet_init
from mmengine.registry import MODELS

from mmlaplace import linearizing
from mmlaplace.linearizing import hybrids

VIT = dict(embed_dims=[32], depths=[3], num_heads=[2], ffn_ratios=[2])
PYRAMID = dict(embed_dims=(16, 32, 32, 64), depths=(1, 2, 3, 1), num_heads=(1, 1, 1, 2),
               ffn_ratios=(2,) * 4)  # fmt: skip
HOSTS = {
    'DINOv2': dict(type='DINOv2', arch=VIT, img_size=56),
    'DINOv2 with registers': dict(type='DINOv2', arch=VIT, img_size=56, num_registers=4),
    'DeiT': dict(type='ViT', arch=VIT, img_size=64),
    'DeiT distilled': dict(type='ViT', arch=VIT, img_size=64, with_dist_token=True),
    'DeiT III': dict(type='ViT', arch=VIT, img_size=64, layer_scale=1e-4),
    'CLIP': dict(type='ViT', arch=VIT, img_size=64, smooth_positions=True, position_norm=True,
                 act_cfg=dict(type='QuickGELU')),
    'SigLIP': dict(type='ViT', arch=VIT, img_size=64, with_cls_token=False),
    'Swin': dict(type='Swin', arch=PYRAMID, img_size=64),
    'SwinV2': dict(type='SwinV2', arch=PYRAMID, img_size=64),
    'PVTv2': dict(type='PVTv2', arch=PYRAMID, img_size=64),
}  # fmt: skip


def build(cfg, seed=0):
    torch.manual_seed(seed)
    backbone = MODELS.build(cfg)
    quiet_init(backbone)
    return backbone.eval()


def pair(host, keep=()):
    """A backbone with softmax, the hybrid of it, and the places of the linear attentions."""
    old = build(HOSTS[host])
    with torch.no_grad():  # a softmax of small logits is almost linear
        for parameter in old.parameters():
            parameter.mul_(8 if parameter.dim() == 2 else 1)
    attention = 'LinearAttention' if host in ('Swin', 'SwinV2', 'PVTv2') else 'AgentAttention'
    cfg = linearizing.linear_config(HOSTS[host], old, attention, keep=keep)
    new = build(cfg, seed=1)
    places = {p: i for p, i in linearizing.softmax_places(old).items() if p not in keep}
    linearizing.keep_weights(new, old, places)
    return old, new, list(places)


@pytest.mark.parametrize('host', HOSTS)
def test_kept_blocks_stay_softmax_with_their_weights_at_any_size(host):
    places = list(linearizing.softmax_places(build(HOSTS[host])))
    keep = linearizing.softmax_blocks(places, [1, len(places) - 1])
    old, new, linear = pair(host, keep)
    assert sorted([*keep, *linear]) == sorted(places) and len(keep) == 2
    same = [p for p in places if type(new.get_submodule(p)) is type(old.get_submodule(p))]
    assert same == list(keep)
    for place in linear:  # with the old attentions back, it is the old model: the rest is kept
        new.set_submodule(place, old.get_submodule(place))
    for prefix in ('cls_tokens', 'class_tokens'):  # and registers
        assert getattr(new, prefix) == getattr(old, prefix)
    images = torch.randn(1, 3, 84, 112)
    torch.testing.assert_close(new(images), old(images))


def test_a_hybrid_keeps_changed_options_of_softmax():
    cfg = dict(HOSTS['Swin'], attn_cfg=[dict(window_size=4)] * 4)
    places = list(linearizing.softmax_places(build(cfg)))
    made = linearizing.linear_config(cfg, build(cfg), 'LinearAttention', keep=places[:2])
    linear = dict(attn_cfg=dict(type='LinearAttention'))
    assert made['attn_cfg'][:2] == [
        dict(window_size=4), dict(window_size=4, per_block=[None, linear])
    ]  # fmt: skip
    blocks = build(made).stages[1]['blocks']
    assert [(b.attn.window_size, b.attn.shifted) for b in blocks] == [(4, False), (4, True)]


HARMS = dict(zip('abcd', (0.4, 0.1, 0.02, 0.08)))
COSTS = dict(
    whole=dict(softmax=20.0, linear=13.5),
    softmax=dict(zip('abcd', (4.0, 4.0, 2.0, 2.0))),
    linear=dict(zip('abcd', (1.0, 1.0, 1.0, 2.5))),
)


@pytest.mark.parametrize('budget, linear', [(0.85, 'b'), (0.8, 'cb'), (0.65, 'cba')])
def test_a_plan_under_a_budget_meets_it(budget, linear):
    plan = linearizing.choose(HARMS, COSTS, budget=budget)
    assert plan.linear == list(linear) and set(plan.keep) == set('abcd') - set(linear)
    assert plan.time == pytest.approx(budget)
    assert plan.harm == pytest.approx(sum(HARMS[p] for p in linear))
    times, harms = zip(*plan.path)  # a Pareto front: d, which saves nothing, is not on it
    assert list(times) == sorted(times, reverse=True) and list(harms) == sorted(harms)
    assert plan.path[0] == (1, 0) and len(plan.path) == 4


def test_savings_of_blocks_add_up_to_that_of_the_whole():
    whole = dict(softmax=40.0, linear=27.0)  # twice as much as the blocks alone
    plan = linearizing.choose(HARMS, dict(COSTS, whole=whole), budget=0.8)
    assert (plan.linear, plan.time) == (['c', 'b'], pytest.approx(1 - 8 / 40))
    assert linearizing.choose(HARMS, COSTS, keep=2).keep == ['a', 'b']  # the most harmful
    slower = dict(softmax=20.0, linear=21.0)
    assert linearizing.choose(HARMS, dict(COSTS, whole=slower), keep=3).time == 0.95


@pytest.mark.parametrize('factor, linear', [(0.9, 'cb'), (1.05, 'ba'), (1.2, 'cba')])
def test_a_plan_meets_the_budget_as_measured_too(factor, linear):
    def measure(keep):
        swapped = [p for p in HARMS if p not in keep]
        saved = sum(COSTS['softmax'][p] - COSTS['linear'][p] for p in swapped)
        return factor * (1 - saved / COSTS['whole']['softmax'])

    plan, measured = linearizing.choose_measured(HARMS, COSTS, measure, budget=0.81)
    assert measured == measure(plan.keep) <= 0.81 and set(plan.linear) == set(linear)
    with pytest.raises(ValueError, match='budget 0.81 .* time, 3 of 4, .* is 0.910'):
        linearizing.choose_measured(HARMS, COSTS, lambda keep: 1.4 * measure(keep) / factor,
                                    budget=0.81)  # fmt: skip


def images(count=hybrids.LEARN + hybrids.MEASURE, size=64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, size, size, generator=generator) for _ in range(count)]


@pytest.mark.parametrize('host', ['DINOv2 with registers', 'Swin'])
def test_the_harm_of_a_block_is_that_of_the_hybrid_and_falls_with_training(host):
    places = list(linearizing.softmax_places(build(HOSTS[host])))
    old, new, _ = pair(host)
    before = copy.deepcopy((old.state_dict(), new.state_dict()))
    place, batches = places[1], images(size=112)
    harm, trained = (
        linearizing.harm_of(new, old, place, batches, steps, 3e-3) for steps in (0, 30)
    )
    assert 0 < trained < harm
    _, hybrid, _ = pair(host, keep=[one for one in places if one != place])
    with torch.no_grad():
        errors = [hybrids.maps_loss(hybrid(x), old(x)) for x in batches[-hybrids.MEASURE :]]
    assert harm == pytest.approx(sum(errors).item() / len(errors), rel=1e-4)  # other order of sums
    torch.testing.assert_close((old.state_dict(), new.state_dict()), before, rtol=0, atol=0)


def test_an_interrupted_search_goes_on_and_other_content_is_refused(tmp_path, monkeypatch):
    old, new, places = pair('DeiT')
    path, timer = tmp_path / 'a/blocks.json', mock.Mock(return_value=1.0)

    def search(sample=64, **settings):
        return linearizing.measure_blocks(
            new, old, places, images, torch.zeros(1, 3, sample, sample), path,
            dict(seed=0, **settings), steps=2, timer=timer,
        )  # fmt: skip

    real = hybrids.harm_of
    whole = {p: real(new, old, p, images(), 2, 1e-3) for p in places}
    measured = mock.Mock(side_effect=[whole[places[0]], KeyboardInterrupt])
    monkeypatch.setattr(hybrids, 'harm_of', measured)
    with pytest.raises(KeyboardInterrupt):
        search()
    assert list(json.loads(path.read_text())['harms']) == places[:1]
    measured.side_effect = real
    found = search()
    assert [call.args[2] for call in measured.call_args_list[2:]] == places[1:]
    assert found['harms'] == pytest.approx(whole)
    count, harms = timer.call_count, measured.call_count
    assert search() == found and timer.call_count == count  # all is there
    search(sample=32)  # another size has other costs, and the same harms
    assert timer.call_count == 2 * count and measured.call_count == harms
    with pytest.raises(ValueError, match='take another --work-dir, or remove that file'):
        search(attention='other')
    with torch.no_grad():
        next(old.parameters()).add_(1)  # trained on, under the same name
    with pytest.raises(ValueError, match='take another --work-dir, or remove that file'):
        search()
    path.write_text('{"cut": ')
    with pytest.raises(ValueError, match='cannot be read .* remove it to start again'):
        search()
