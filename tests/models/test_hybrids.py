"""Hybrids keep those softmax blocks that matter; losses, batches and processes of linearizing."""

import copy
import json
from itertools import islice
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from conftest import quiet_init
from mmengine.model import BaseModel
from mmengine.registry import MODELS

from mmlaplace import linearizing
from mmlaplace.linearizing import distilling, hybrids
from mmlaplace.linearizing.losses import images_of
from mmlaplace.models import LinearAttention, SoftmaxAttention

VIT = dict(embed_dims=[32], depths=[3], num_heads=[2], ffn_ratios=[2])
PYRAMID = dict(
    embed_dims=(16, 32, 32, 64), depths=(1, 2, 3, 1), num_heads=(1, 1, 1, 2), ffn_ratios=(2,) * 4
)
HOSTS = {
    'DINOv2': dict(type='DINOv2', arch=VIT, img_size=56),
    'DINOv2 with registers': dict(type='DINOv2', arch=VIT, img_size=56, num_registers=4),
    'DeiT': dict(type='ViT', arch=VIT, img_size=64),
    'DeiT distilled': dict(type='ViT', arch=VIT, img_size=64, with_dist_token=True),
    'DeiT III': dict(type='ViT', arch=VIT, img_size=64, layer_scale=1e-4),
    'CLIP': dict(
        type='ViT',
        arch=VIT,
        img_size=64,
        smooth_positions=True,
        position_norm=True,
        act_cfg=dict(type='QuickGELU'),
    ),
    'SigLIP': dict(type='ViT', arch=VIT, img_size=64, with_cls_token=False),
    'Swin': dict(type='Swin', arch=PYRAMID, img_size=64),
    'SwinV2': dict(type='SwinV2', arch=PYRAMID, img_size=64),
    'PVTv2': dict(type='PVTv2', arch=PYRAMID, img_size=64),
}


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
    for prefix in ('cls_tokens', 'class_tokens'):  # and registers
        assert getattr(new, prefix) == getattr(old, prefix)
    images = torch.randn(1, 3, 84, 112)
    # With the old attentions back, it is the old model: the rest is kept.
    with hybrids.put_all(new, {place: old.get_submodule(place) for place in linear}):
        torch.testing.assert_close(new(images), old(images))


def test_a_hybrid_keeps_changed_options_of_softmax():
    cfg = dict(HOSTS['Swin'], attn_cfg=[dict(window_size=4)] * 4)
    places = list(linearizing.softmax_places(build(cfg)))
    made = linearizing.linear_config(cfg, build(cfg), 'LinearAttention', keep=places[:2])
    linear = dict(attn_cfg=dict(type='LinearAttention'))
    assert made['attn_cfg'][:2] == [
        dict(window_size=4),
        dict(window_size=4, per_block=[None, linear]),
    ]
    blocks = build(made).stages[1]['blocks']
    assert [(b.attn.window_size, b.attn.shifted) for b in blocks] == [(4, False), (4, True)]


@pytest.mark.parametrize(
    ('keep', 'attention', 'stays'),
    [
        ((), 'AgentAttention', False),
        ((0,), 'AgentAttention', True),
        ((2,), 'AgentAttention', False),  # the global block
        ((0, 2), 'InLineAttention:1', True),
        ((), 'InLineAttention:1-2', True),  # the first is in no plan
    ],
)
def test_windows_stay_where_softmax_with_windows_stays(keep, attention, stays):
    cfg = dict(HOSTS['DINOv2'], window_size=2, global_blocks=[2])
    old = build(cfg)
    places = list(linearizing.softmax_places(old))
    plan = linearizing.attention_plan(places, [attention])
    made = linearizing.linear_config(cfg, old, plan, keep=[places[n] for n in keep])
    assert [name in made for name in ('window_size', 'global_blocks')] == [stays] * 2
    assert any(getattr(b.attn, 'window_size', 0) for b in build(made).stages[0].blocks) == stays


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
        linearizing.choose_measured(
            HARMS, COSTS, lambda keep: 1.4 * measure(keep) / factor, budget=0.81
        )


def images(count=hybrids.LEARN + hybrids.MEASURE, size=64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, size, size, generator=generator) for _ in range(count)]


@pytest.mark.parametrize('host', ['DINOv2 with registers', 'Swin'])
def test_the_harm_of_a_block_is_that_of_the_hybrid_and_falls_with_training(host, monkeypatch):
    monkeypatch.delattr(torch.nn.Module, 'set_submodule', raising=False)  # as in torch 2.1
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
            new,
            old,
            places,
            images,
            torch.zeros(1, 3, sample, sample),
            path,
            dict(seed=0, **settings),
            steps=2,
            timer=timer,
        )

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
    for budget, said in ((0.5, 'budget 0.5 cannot be met'), (7, 'above 0 and at most 1')):
        with pytest.raises(ValueError, match=said):  # by the costs, of clocks that stand still
            linearizing.check_reachable(found['costs'], budget)
    with torch.no_grad():
        next(old.parameters()).add_(1)  # trained on, under the same name
    with pytest.raises(ValueError, match='take another --work-dir, or remove that file'):
        search()
    path.write_text('{"cut": ')
    with pytest.raises(ValueError, match='cannot be read .* remove it to start again'):
        search()


MAP = dict(HOSTS['DeiT'], with_cls_token=False)


def planned(host, attentions, options=None):
    """A backbone with softmax, and one that has other attentions by a plan."""
    old = build(host)
    places = linearizing.softmax_places(old)
    plan = linearizing.attention_plan(list(places), attentions, options)
    new = build(linearizing.linear_config(host, old, plan), seed=1)
    linearizing.keep_weights(new, old, {place: places[place] for place in plan})
    return old, new


def kinds(backbone):
    return [type(block.attn).__name__ for stage in backbone.stages for block in stage['blocks']]


def test_blocks_get_the_attentions_of_a_plan_and_tokens_stay():
    options = dict(AgentAttention=dict(num_landmarks=4), lepe_kernel=3)
    plan = ['InLineAttention:1', 'AgentAttention:0']
    old, new = planned(HOSTS['DINOv2 with registers'], plan, options)
    assert kinds(new) == ['AgentAttention', 'InLineAttention', 'SoftmaxAttention']
    assert new.stages[0]['blocks'][0].attn.landmarks.side == 2 and new.cls_tokens == old.cls_tokens
    swin, mixed = planned(HOSTS['Swin'], ['PolaAttention:0-2', 'LinearAttention'])
    inside = [type(mixed.get_submodule(p)).__name__ for p in linearizing.softmax_places(swin)]
    assert inside == ['PolaAttention'] * 3 + ['LinearAttention'] * 4


def test_softmax_in_windows_keeps_its_weights():
    """One window of the whole map is the old attention."""
    window = dict(window_size=8, attn_cfg=dict(relative_bias=False))
    old, new = planned(MAP, ['WindowAttention:0,2'], window)
    assert kinds(new) == ['WindowAttention', 'SoftmaxAttention', 'WindowAttention']
    torch.testing.assert_close(new(images()[0])[0], old(images()[0])[0])


class Task(BaseModel):
    """A classifier with a loss, as the toolboxes have it."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.neck = backbone, lambda maps: maps[-1].mean((2, 3))
        self.head = torch.nn.Linear(backbone.embed_dims[-1], 5)

    def forward(self, inputs, data_samples, mode):
        scores = self.head(self.neck(self.backbone(inputs)))
        return dict(loss_cls=F.cross_entropy(scores, data_samples))


def tasks(host='DeiT'):
    old, new, places = pair(host)
    old, new = Task(old), Task(new)
    new.head.load_state_dict(old.head.state_dict())
    return new, old, places


def labelled(step):
    while True:
        generator = torch.Generator().manual_seed(step)
        yield dict(
            inputs=torch.randn(4, 3, 64, 64, generator=generator), data_samples=torch.arange(4)
        )
        step += 1


def unlabelled(step):
    return map(images_of, labelled(step))


def test_a_task_has_the_loss_of_labels_and_of_attentions_and_an_unknown_one_is_quoted():
    new, old, places = tasks()
    batch = next(labelled(0))
    wanted = old(**batch, mode='loss')['loss_cls']
    assert linearizing.task_loss(old, old, places, 50, batch).item() == pytest.approx(wanted.item())
    parts = [linearizing.task_loss(new, old, places, w, batch).item() for w in (0, 1, 50)]
    assert parts[1] > parts[0] == pytest.approx(new(**batch, mode='loss')['loss_cls'].item())
    assert parts[2] - parts[0] == pytest.approx(50 * (parts[1] - parts[0]), rel=1e-3)
    with pytest.raises(ValueError, match="one of .* got 'logits'"):
        linearizing.distill(new, old, places, labelled, linearizing.Schedule(loss='logits'))


def fitted(size, first=0, every=8, accumulate=1):
    """Weights after two steps in fp64, with samples from one of each 8 on, so many at a time."""
    torch.manual_seed(0)
    x = torch.randn(16, 16, 32, dtype=torch.float64)
    old, new = (kind(32, 2, (4, 4)).double() for kind in (SoftmaxAttention, LinearAttention))
    y = old(x, (4, 4)).detach()

    def batches(step):
        for start in range(first + step * every, 16, every):
            yield x[start : start + size], y[start : start + size]

    def loss_of(pair):
        return F.mse_loss(new(pair[0], (4, 4)), pair[1])

    schedule = linearizing.Schedule(lr=1e-2, accumulate=accumulate)
    linearizing.fit(new, list(new.parameters()), loss_of, batches, 2, schedule)
    return torch.cat([p.detach().flatten() for p in new.parameters()])


# Sums in another order in fp64, of gradients that AdamW divides by their size, at least 1e-8.
SAME = dict(rtol=0, atol=1e-8)


def test_blocks_drop_no_path_while_they_learn_the_old_ones():
    """A copy of the old blocks has nothing to learn, also of a model in training mode."""
    host = dict(HOSTS['DeiT'], drop_path_rate=0.5)
    new, old = Task(build(host)), Task(build(host))
    new.load_state_dict(old.state_dict())
    old.train()
    places = linearizing.softmax_places(old.backbone)
    done = linearizing.distill(new, old, places, labelled, linearizing.Schedule(1, 0, loss='block'))
    assert done['layers']['losses'] == [0.0]


def test_accumulated_batches_are_one_large_one_and_go_on_where_they_were():
    whole = fitted(8)
    torch.testing.assert_close(fitted(4, every=4, accumulate=2), whole, **SAME)
    assert (fitted(4) - whole).abs().max() > 1e-3
    seen, state = [], {}

    def batches(step):
        seen.append(step)
        yield from islice(labelled(step), 4)

    layer, schedule = torch.nn.Linear(64, 1), linearizing.Schedule(accumulate=2)
    with mock.patch.object(distilling, 'EVERY', 1):
        for steps in (1, 2):
            linearizing.fit(
                layer,
                [*layer.parameters()],
                lambda batch: layer(batch['inputs']).square().mean(),
                batches,
                steps,
                schedule,
                state or None,
                state.update,
            )
    assert seen == [0, 2]


def test_half_precision_is_near():
    losses = []
    for amp in (False, True):
        new, old, places = tasks()
        schedule = linearizing.Schedule(3, 3, amp=amp)
        made = linearizing.distill(new, old, places, unlabelled, schedule)
        losses.append([made[phase]['losses'][0] for phase in ('layers', 'whole')])
        assert all(p.dtype == torch.float32 and p.isfinite().all() for p in new.parameters())
    # bf16 has steps of 1/128, and the error of the old maps adds to that of the new ones.
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.05)


def of_one_rank(rank, folder):
    """What one of two processes makes of its own images."""
    torch.distributed.init_process_group('gloo', f'file://{folder}/store', rank=rank, world_size=2)
    made, (new, old, places) = dict(fitted=fitted(4, first=4 * rank)), tasks()
    mine = [batch['inputs'] for batch in islice(labelled(100 * rank), 3)]
    found = linearizing.measure_blocks(
        new.backbone,
        old.backbone,
        places[:1],
        lambda: mine,
        mine[0],
        folder / f'{rank}/blocks.json',
        {},
        1,
        timer=lambda job, device: 1.0 + rank,
    )
    torch.save(dict(made, **found), folder / f'{rank}.pth')
    torch.distributed.destroy_process_group()


@pytest.mark.thorough
@pytest.mark.slow
def test_two_processes_are_one_with_large_batches_and_the_first_writes(tmp_path):
    torch.multiprocessing.spawn(of_one_rank, (tmp_path,), nprocs=2)
    first, second = (torch.load(tmp_path / f'{rank}.pth') for rank in range(2))
    torch.testing.assert_close(first['fitted'], fitted(8), **SAME)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert (tmp_path / '0/blocks.json').is_file() and not (tmp_path / '1').exists()
