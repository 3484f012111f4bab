"""Softmax blocks that stay are chosen by the score of the trained head."""

import json

import pytest
import torch
from conftest import micro_config
from mmengine.config import Config
from mmengine.model import BaseModel
from own_data import write_class_folders, write_coco

from mmlaplace.engine.first_checks.leaves import evenly
from mmlaplace.linearizing import Scorer, TaskSearch, choose, hybrids
from mmlaplace.models import LinearAttention, SoftmaxAttention

HARMS = dict(a=0.4, b=0.1, c=0.2, d=0.3)
COSTS = dict(
    whole=dict(softmax=10.0, linear=6.0),
    softmax=dict.fromkeys('abcd', 2.0),
    linear=dict.fromkeys('abcd', 1.0),
)


def score_of(**losses):
    """The score 90, less the losses of all sets of attentions that are linear, such as ``ab=3``."""

    def score(linear):
        score_of.asked.append(''.join(sorted(linear)))
        return 90.0 - sum(loss for names, loss in losses.items() if set(names) <= linear)

    score_of.asked = []
    return score


def test_blocks_are_judged_beside_those_that_are_linear_already():
    search = TaskSearch(score_of(a=4, b=1, c=3, d=3, bc=-2, bd=9))
    plan = search(HARMS, COSTS, keep=2)
    assert plan.linear == ['b', 'c'] and plan.keep == ['a', 'd'] and plan.harm == 2
    assert plan.path == [(1.0, 0.0), (0.9, 1.0), (0.8, 2.0)]
    assert score_of.asked == ['', 'a', 'b', 'c', 'd', 'ab', 'bc', 'bd']  # each set once
    assert choose(HARMS, COSTS, keep=2).linear == ['b', 'c']
    plan = search(HARMS, COSTS, keep=1)
    assert plan.linear == ['b', 'c', 'a'] and score_of.asked[8:] == ['abc', 'bcd']


def test_a_wider_beam_finds_what_one_block_after_the_other_hides():
    losses = dict(a=1, b=2, c=2, d=9, ab=8, ac=8, ad=8)
    plans = [TaskSearch(score_of(**losses), beam)(HARMS, COSTS, keep=2) for beam in (1, 2)]
    assert [plan.linear for plan in plans] == [['a', 'b'], ['b', 'c']]
    assert [plan.harm for plan in plans] == [11, 4]


def test_equal_scores_and_scores_that_rise_by_chance_leave_it_to_the_harms():
    plan = TaskSearch(score_of(a=-5, d=-1))(HARMS, COSTS, keep=2)
    assert plan.linear == ['b', 'c'] and plan.harm == 0


def test_a_budget_is_met_by_the_smallest_loss_per_time_saved():
    costs = dict(
        whole=dict(softmax=10.0, linear=5.0),
        softmax=dict(a=4.0, b=2.0, c=2.0, d=2.0),
        linear=dict(a=1.0, b=1.0, c=1.0, d=2.5),
    )
    costs['whole']['linear'] = 5.5
    search = TaskSearch(score_of(a=4, b=2, c=2))
    plan = search(HARMS, costs, budget=0.65)
    assert plan.linear == ['a', 'b'] and plan.time == pytest.approx(0.6)
    assert 'd' not in ''.join(score_of.asked)  # it saves no time
    # What came first and is not needed any more turns back.
    plan = TaskSearch(score_of(a=2, b=0.125))(HARMS, costs, budget=0.7)
    assert plan.linear == ['a'] and plan.path[1:] == [(0.9, 0), (0.8, 0.125), (0.5, 2.125)]
    with pytest.raises(ValueError, match='the softmax model itself meets the budget 1.0'):
        search(HARMS, costs, budget=1)
    with pytest.raises(ValueError, match='budget 0.1 cannot be met .* 0.500, with 3 of 4'):
        search(HARMS, costs, budget=0.1)
    with pytest.raises(ValueError, match='either keep or budget, got keep=1 and budget=0.5'):
        search(HARMS, costs, keep=1, budget=0.5)
    with pytest.raises(ValueError, match='from 1 to 3, .* got 4'):
        search(HARMS, costs, keep=4)


def test_a_measured_time_above_the_budget_makes_more_blocks_linear():
    search = TaskSearch(score_of(a=1, b=4, c=2, d=3))
    plan, measured = hybrids.choose_measured(
        HARMS, COSTS, lambda keep: 0.65 + 0.1 * len(keep), budget=0.8, planner=search
    )
    assert plan.linear == ['a', 'c', 'd'] and measured == 0.75  # by harms they were b, c and d
    with pytest.raises(ValueError, match='budget 0.6 .* 4 of 4, the measured time is 0.650'):
        hybrids.choose_measured(
            HARMS, COSTS, lambda keep: 0.65 + 0.1 * len(keep), budget=0.6, planner=search
        )


def test_scores_that_are_there_are_not_measured_again():
    kept, calls = {'': 90.0, 'a': 80.0}, []
    search = TaskSearch(score_of(a=1), scores=kept, scored=lambda: calls.append(dict(kept)))
    assert search.loss(frozenset('a')) == 10 and not score_of.asked
    assert search.loss(frozenset('ba')) == 1 and kept['a b'] == 89 and calls == [kept]


def test_attentions_that_have_learned_are_kept_with_their_settings(tmp_path):
    torch.manual_seed(0)
    new = torch.nn.ModuleDict(
        dict(a=LinearAttention(32, 2, (4, 4)), b=LinearAttention(32, 2, (4, 4)))
    )
    path, settings = tmp_path / 'blocks.pth', dict(seed=0)
    assert hybrids.read_learned(new, ['a'], settings, path) == {}
    hybrids.write_learned(new, settings, path)
    other = torch.nn.ModuleDict(
        dict(a=LinearAttention(32, 2, (4, 4)), b=LinearAttention(32, 2, (4, 4)))
    ).train()
    found = hybrids.read_learned(other, ['b', 'c'], settings, path)
    assert list(found) == ['b'] and not found['b'].training
    torch.testing.assert_close(found['b'].state_dict(), new['b'].state_dict())
    with pytest.raises(ValueError, match='take another --work-dir, or remove that file'):
        hybrids.read_learned(new, ['a'], dict(seed=1), path)


def test_an_attention_that_has_learned_is_the_one_whose_harm_was_measured():
    torch.manual_seed(0)
    old, new = (Maps(kind(32, 2, (4, 4))) for kind in (SoftmaxAttention, LinearAttention))
    batches, learned = [torch.randn(2, 16, 32) for _ in range(3)], {}
    harm = hybrids.harm_of(new, old, 'attn', batches, 5, 1e-2, learned=learned)
    assert not torch.equal(learned['attn'].qkv.weight, new.attn.qkv.weight)
    again = hybrids.harm_of(Maps(learned['attn']), old, 'attn', batches, 0, 1e-2)
    assert again == pytest.approx(harm, rel=1e-5)  # the same numbers


class Maps(torch.nn.Module):
    """A backbone of one attention on maps of 4 x 4 tokens."""

    def __init__(self, attn):
        super().__init__()
        self.attn = attn.eval()

    def forward(self, x):
        return [self.attn(x, (4, 4))]


def test_images_lie_evenly_in_the_data_set():
    assert evenly(10, 4) == [0, 3, 6, 9] and evenly(3, 9) == [0, 1, 2] and evenly(0, 2) == []


class Told(BaseModel):
    """Answers with what each image's sample says."""

    def __init__(self, answer):
        super().__init__()
        self.answer, self.seen = answer, []

    def forward(self, inputs, data_samples, mode):
        raise NotImplementedError

    def val_step(self, data):
        samples = [sample.clone() for sample in data['data_samples']]
        self.seen.extend(samples)
        return [self.answer(sample) for sample in samples]


def classes(folder):
    """A config that validates on five images of two classes in folders."""
    pytest.importorskip('mmpretrain')
    write_class_folders(folder, train=2, val=5)
    cfg = Config.fromfile(micro_config('laplacianformer'))
    cfg.val_dataloader.update(batch_size=2, num_workers=0, persistent_workers=False)
    cfg.val_dataloader.dataset.update(data_root=str(folder), data_prefix='val')
    return cfg


def test_the_score_is_that_of_the_evaluator_on_a_part_of_the_images(tmp_path):
    cfg = classes(tmp_path / 'photos')

    def says_class_0(sample):
        scores = torch.zeros(10)
        scores[0] = 1
        return sample.set_pred_score(scores).set_pred_label(torch.tensor([0]))

    model = Told(says_class_0).train()
    scorer = Scorer(cfg, 'accuracy/top1', 4)
    assert scorer(model) == 50 and scorer.images == len(model.seen) == 4
    # Of box 1, 3 and disc 0, 2, 4 there are all but the last.
    assert sum(int(sample.gt_label) == 0 for sample in model.seen) == 2
    assert not model.training and scorer(model) == 50  # anew
    assert Scorer(cfg, 'accuracy/top1')(model) in (40, 60)  # five images
    with pytest.raises(ValueError, match="no 'accuracy/top9', but accuracy/top1"):
        Scorer(cfg, 'accuracy/top9')(model)
    cfg.val_dataloader.dataset.update(with_label=False, data_prefix='val/disc')
    with pytest.raises(ValueError, match=r'no labels .KeyError.*name data with labels'):
        Scorer(cfg, 'accuracy/top1')(model)
    cfg.val_evaluator = None
    with pytest.raises(ValueError, match='has no val_dataloader and val_evaluator'):
        Scorer(cfg, 'accuracy/top1')


def test_a_loss_is_better_when_it_is_less(tmp_path, monkeypatch):
    scorer = Scorer(classes(tmp_path / 'photos'), 'mean_error')
    monkeypatch.setattr(scorer, '_evaluated', lambda model: dict(mean_error=3.0))
    assert scorer(Told(None)) == -3
    for value in (-1.0, float('nan')):
        monkeypatch.setattr(scorer, '_evaluated', lambda model, value=value: dict(mean_error=value))
        with pytest.raises(ValueError, match=f'mean_error is {value} on the 5 images'):
            scorer(Told(None))


def test_boxes_of_images_that_are_not_scored_count_nothing(tmp_path, capsys):
    pytest.importorskip('mmdet')
    from mmengine.structures import InstanceData

    write_coco(tmp_path / 'boxes', val=6, masks=False)
    cfg = Config.fromfile(micro_config('retinanet'))
    path = tmp_path / 'boxes/annotations/val.json'
    cfg.val_dataloader.update(batch_size=2, num_workers=0, persistent_workers=False)
    cfg.val_dataloader.dataset.update(
        data_root=str(tmp_path / 'boxes'),
        data_prefix=dict(img='val'),
        ann_file='annotations/val.json',
        metainfo=dict(classes=('disc', 'box')),
    )
    for step in cfg.val_dataloader.dataset.pipeline:
        step.pop('with_mask', None)
    cfg.val_evaluator.update(ann_file=str(path), metric='bbox')
    wanted = {}
    for box in json.loads(path.read_text())['annotations']:
        wanted.setdefault(box['image_id'], []).append(box)

    def is_right(sample):
        boxes = wanted.get(sample.img_id, [])
        sides = torch.tensor([box['bbox'] for box in boxes]).float().view(-1, 4)
        sample.pred_instances = InstanceData(
            bboxes=torch.cat([sides[:, :2], sides[:, :2] + sides[:, 2:]], 1),
            scores=torch.ones(len(boxes)),
            labels=torch.tensor([box['category_id'] - 3 for box in boxes]).long(),
        )
        return sample

    assert Scorer(cfg, 'coco/bbox_mAP', 3)(Told(is_right)) == 1
    path.write_text(json.dumps(dict(json.loads(path.read_text()), annotations=[])))
    with pytest.raises(ValueError, match='coco/bbox_mAP is -1.0 on the 3 images'):
        Scorer(cfg, 'coco/bbox_mAP', 3)(Told(is_right))
    assert 'Average Precision' not in capsys.readouterr().out
