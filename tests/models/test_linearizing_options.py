"""Plans, losses, accumulated batches, half precision and several processes of linearizing."""

from itertools import islice
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from test_hybrids import HOSTS, build, images, pair

from mmlaplace import linearizing
from mmlaplace.linearizing import distilling
from mmlaplace.linearizing.losses import images_of
from mmlaplace.models import LinearAttention, SoftmaxAttention

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
        yield dict(inputs=torch.randn(4, 3, 64, 64, generator=generator),
                   data_samples=torch.arange(4))  # fmt: skip
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
    """A copy of the old blocks has nothing to learn."""
    host = dict(HOSTS['DeiT'], drop_path_rate=0.5)
    new, old = Task(build(host)), Task(build(host))
    new.load_state_dict(old.state_dict())
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
                layer, [*layer.parameters()], lambda batch: layer(batch['inputs']).square().mean(),
                batches, steps, schedule, state or None, state.update,
            )  # fmt: skip
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
        new.backbone, old.backbone, places[:1], lambda: mine, mine[0],
        folder / f'{rank}/blocks.json', {}, 1, timer=lambda job, device: 1.0 + rank,
    )  # fmt: skip
    torch.save(dict(made, **found), folder / f'{rank}.pth')
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_are_one_with_large_batches_and_the_first_writes(tmp_path):
    torch.multiprocessing.spawn(of_one_rank, (tmp_path,), nprocs=2)
    first, second = (torch.load(tmp_path / f'{rank}.pth') for rank in range(2))
    torch.testing.assert_close(first['fitted'], fitted(8), **SAME)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert (tmp_path / '0/blocks.json').is_file() and not (tmp_path / '1').exists()
