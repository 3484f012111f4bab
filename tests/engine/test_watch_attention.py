"""Hooks: one shows what attentions do while a model trains, one draws other random features."""

import json
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from saved_weights import build, train

from mmlaplace.analysis.recording import steps_watched
from mmlaplace.engine import RedrawFeaturesHook
from mmlaplace.engine.watch_attention import look_at
from mmlaplace.models import LaplacianAttention, PerformerAttention

HOOK = 'WatchAttentionHook'
STAGES = (1, 2, 3, 4)


class Toy(BaseModel):
    """A backbone, with noise that would change if others drew random numbers."""

    def __init__(self, **backbone) -> None:
        super().__init__(dict(type='ImgDataPreprocessor'))
        self.backbone = build(drop_path_rate=0.3, **backbone)
        self.norm = torch.nn.BatchNorm1d(32)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        features = self.norm(self.backbone(inputs)[-1].mean((2, 3)))
        return dict(loss=(features - torch.rand_like(features)).square().mean())


def test_training_is_the_same_with_it_and_each_stage_is_logged_every_interval(tmp_path):
    one, other = Toy(), Toy()
    other.load_state_dict(one.state_dict())
    options = dict(
        default_hooks=dict(checkpoint=None, logger=dict(type='LoggerHook', interval=1)),
        visualizer=dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')]),
    )
    train(tmp_path / 'without', one, **options)
    hook = dict(type=HOOK, interval=2, images=2)
    train(tmp_path / 'with', other, custom_hooks=[hook], **options)
    before, after = one.state_dict(), other.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(part.training for part in other.modules())
    lines = next((tmp_path / 'with').rglob('scalars.json')).read_text().splitlines()
    looks = [line for line in map(json.loads, lines) if 'attention/share/stage1' in line]
    assert [line['step'] for line in looks] == [2, 4]
    figures = [f'{name}/stage{i}' for name in ('share', 'gamma', 'condition') for i in STAGES]
    for line in looks:
        assert set(line) == {'step', *(f'attention/{figure}' for figure in figures)}
        assert all(0 < line[f'attention/share/stage{stage}'] < 1 for stage in STAGES)


def test_the_figures_are_those_of_the_formulas():
    backbone = build(attn_cfg=dict(type='LaplacianAttention', num_landmarks=4)).eval()
    attention = backbone.stages[0]['blocks'][0].attn
    kept, image = {}, torch.randn(1, 3, 32, 32)

    def keep(name, part, step, arguments, made):
        kept.setdefault(step, (arguments[0], made))

    with steps_watched(backbone, LaplacianAttention, ('mix', 'local_branch', 'invert'), keep):
        backbone(image)
    figures = look_at(backbone, image)
    steps = ('mix', 'local_branch')
    mixed, local = (kept[step][1].square().mean().sqrt().item() for step in steps)
    # Both are sums of a few hundred squares in fp32.
    assert figures['share'][1] == pytest.approx(mixed / (mixed + local), rel=1e-5)
    ridged = kept['invert'][0].double() + attention.ridge * torch.eye(4).double()
    assert figures['condition'][1] == pytest.approx(torch.linalg.cond(ridged).max().item())
    attention.gamma.data.neg_()
    # It starts at the square root of the tokens, 8 x 8 in stage 1.
    assert look_at(backbone, image)['gamma'][1] == pytest.approx(8)
    backbone.stages[0]['blocks'][0].norm1.weight.data.fill_(float('inf'))
    assert str(look_at(backbone, image)['condition'][1]) == 'nan'


@pytest.mark.parametrize(('attn_cfg', 'figures'), [
    (dict(type='SOFTAttention'), {'share', 'condition'}),
    (dict(type='KernelAttention', normalization='whitened'), {'share', 'gamma'}),
    (dict(type='XCAttention', lepe_kernel=0), {'temperature'}),
    (dict(type='SoftmaxAttention', lepe_kernel=0), set()),
])  # fmt: skip
def test_what_an_attention_has_not_is_left_out(attn_cfg, figures):
    found = look_at(build(attn_cfg=attn_cfg), torch.randn(1, 3, 64, 64))
    assert set(found) == figures
    assert all(value > 0 for by_stage in found.values() for value in by_stage.values())


def test_the_first_process_watches_the_model_in_a_wrapper_whose_frozen_stages_stay_in_eval_mode():
    hook, runner = HOOKS.build(dict(type=HOOK, interval=1)), mock.Mock(iter=0)
    model = Toy(frozen_stages=2).double().train()  # its images become fp64, too
    runner.model = torch.nn.DataParallel(model)  # in which mmengine finds it as in DDP's
    before = {name: part.training for name, part in model.named_modules()}
    assert before['norm'] and not before['backbone.stages.1']
    hook.before_train(runner)
    # Images of other sizes than the first are left out.
    batch = dict(inputs=[torch.randn(3, side, 32) for side in (32, 48)])
    hook.after_train_iter(runner, 0, batch)
    assert {name: part.training for name, part in model.named_modules()} == before
    assert 'attention/gamma/stage4' in runner.visualizer.add_scalars.call_args[0][0]
    with mock.patch('mmlaplace.engine.watch_attention.is_main_process', return_value=False):
        hook.after_train_iter(runner, 0, batch)
    assert runner.visualizer.add_scalars.call_count == 1


def test_options_models_and_batches_that_do_not_fit_are_refused():
    for option in ('interval', 'images'):
        with pytest.raises(ValueError, match=f'{option} must be at least 1, got 0'):
            HOOKS.build(dict(type=HOOK, **{option: 0}))
    hook = HOOKS.build(dict(type=HOOK, interval=1))
    with pytest.raises(TypeError, match='model.backbone, and Linear has none'):
        hook.before_train(mock.Mock(model=torch.nn.Linear(1, 1)))
    with pytest.raises(TypeError, match='got tuple'):
        hook.after_train_iter(mock.Mock(model=Toy(), iter=0), 0, (torch.zeros(1, 3, 32, 32),))


def test_features_are_drawn_again_after_so_many_iterations():
    model = torch.nn.Sequential(PerformerAttention(32, 2, (7, 7)), torch.nn.Linear(2, 2))
    hook = HOOKS.build(dict(type='RedrawFeaturesHook', interval=3))
    runner, seen = SimpleNamespace(model=model, iter=0, hooks=[]), []
    for runner.iter in range(7):
        seen.append(model[0].projection_matrix.clone())
        hook.after_train_iter(runner, runner.iter)
    changes = [not torch.equal(a, b) for a, b in zip(seen, seen[1:])]
    assert changes == [False, False, True, False, False, True]
    with pytest.raises(ValueError, match='at least 1, got 0'):
        HOOKS.build(dict(type='RedrawFeaturesHook', interval=0))


def draw(rank, store):
    """One of two processes of a training, each of which has a seed of its own."""
    torch.distributed.init_process_group('gloo', f'file://{store}', rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = torch.nn.Sequential(PerformerAttention(32, 2, (7, 7)))
    hook = RedrawFeaturesHook(interval=1)
    hook.after_train_iter(SimpleNamespace(model=model, iter=0, hooks=[]), 0)
    drawn = [None, None]
    torch.distributed.all_gather_object(drawn, model[0].projection_matrix)
    assert torch.equal(*drawn)
    torch.distributed.destroy_process_group()


def test_all_processes_of_a_training_get_the_same_features(tmp_path):
    store = tmp_path / 'store'
    torch.multiprocessing.start_processes(draw, (store,), nprocs=2, start_method='fork')
