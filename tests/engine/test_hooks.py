"""Hooks: one shows what attentions do while a model trains, one draws other random features.

Averages of models, and training that is resumed: no tensor changes its meaning by them.
"""

import json
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from conftest import registered
from mmengine.model import BaseModel
from mmengine.registry import HOOKS, MODELS
from small_backbone import build, train
from torch.optim.swa_utils import AveragedModel, update_bn

from mmlaplace.analysis.recording import steps_watched
from mmlaplace.engine import RedrawFeaturesHook, copy_features
from mmlaplace.engine.watch_attention import look_at
from mmlaplace.models import BaseAttention, LaplacianAttention, PerformerAttention
from mmlaplace.models.layers import PRepBN, TransformerBlock
from mmlaplace.models.layers.build import MAP_NORMS, TOKEN_NORMS

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


@pytest.mark.parametrize(
    ('attn_cfg', 'figures'),
    [
        (dict(type='SOFTAttention'), {'share', 'condition'}),
        (dict(type='KernelAttention', normalization='whitened'), {'share', 'gamma'}),
        (dict(type='XCAttention', lepe_kernel=0), {'temperature'}),
        (dict(type='SoftmaxAttention', lepe_kernel=0), set()),
    ],
)
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
    runner = SimpleNamespace(model=model, iter=0, hooks=[])
    for runner.iter in range(7):
        before = model[0].projection_matrix.clone()
        hook.after_train_iter(runner, runner.iter)
        drawn = not torch.equal(model[0].projection_matrix, before)
        assert drawn == (runner.iter in (2, 5))
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


# ---- averages


# In an average: the mean of means and variances; a count that nothing reads; the mean of forwards;
# the last draw.
KNOWN = {'running_mean', 'running_var', 'num_batches_tracked', 'forwards', 'projection_matrix'}
PARTS = [
    *(
        dict(options, type=name)
        for name in registered(BaseAttention)
        for options in ({}, *MODELS.get(name).tested_options)
    ),
    *(dict(type=name) for name in (*TOKEN_NORMS, *MAP_NORMS, 'RepBN') if name != 'SyncBN'),  # a GPU
    dict(type='PRepBN', steps=3),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize('part', PARTS, ids=lambda part: '-'.join(map(str, part.values())))
@torch.no_grad()
def test_an_average_of_equal_models_computes_as_the_model(part):
    sizes = dict(embed_dims=32, num_heads=2, input_resolution=(4, 4))
    if part['type'] in registered(BaseAttention):
        model = MODELS.build(dict(part, **sizes))
    else:
        model = TransformerBlock(32, dict(type='SoftmaxAttention', **sizes), norm_cfg=part)
    model, x = model.train(), torch.randn(2, 16, 32)
    named = {name.rpartition('.')[2] for name, _ in model.named_buffers()}
    assert named <= KNOWN, 'decide what the average of this buffer is'
    model(x, (4, 4))  # gives statistics
    averages = [AveragedModel(model, use_buffers=buffers) for buffers in (False, True)]
    ema = dict(type='ExponentialMovingAverage', model=model)
    averages += [MODELS.build(dict(ema, update_buffers=buffers)) for buffers in (False, True)]
    for average in averages:
        for _ in range(3):
            average.update_parameters(model)
        for training in (False, True):
            with torch.random.fork_rng():  # some draw
                out = model.train(training)(x, (4, 4))
            # The weights are the same. Kernels may differ, as an average takes no gradients.
            torch.testing.assert_close(average.train(training)(x, (4, 4)), out)


# ---- PRepBN, whose forwards say how much of a LayerNorm it is


def test_new_statistics_of_an_average_are_those_of_the_trained_norm():
    model = torch.nn.Sequential(PRepBN(8, steps=2), torch.nn.Linear(8, 8), PRepBN(8, steps=2))
    data = [torch.randn(3, 5, 8) for _ in range(4)]
    with torch.no_grad():
        for norm in (model[0], model[2]):  # unlike each other, so that they cannot be confused
            norm.layer_norm.weight.fill_(7.0)
            norm.forwards.fill_(5.0)
        average = AveragedModel(model)
        average.update_parameters(model)
        update_bn(data, average)
        first = average.module[0]
        means = [
            average.module[1](first.bn(x.flatten(0, 1)) + x.flatten(0, 1)).mean(0) for x in data
        ]
    # The sums of one batch in two orders.
    torch.testing.assert_close(average.module[2].bn.running_mean, torch.stack(means).mean(0))


# ---- Performer, whose weights get used to the draw


@pytest.mark.filterwarnings('error')
def test_an_average_of_draws_is_told_what_to_do():
    model = PerformerAttention(32, 2, (7, 7))
    average = AveragedModel(model, use_buffers=True)
    average.update_parameters(model)
    average.eval()
    for _ in range(20):
        model.redraw()
        model.bfloat16().eval()
    average.update_parameters(model.float())
    message = r'is 0.* and not 1.*copy_features\(model, averaged\.module'
    with pytest.warns(UserWarning, match=message):
        average.eval()
    with pytest.warns(UserWarning, match='copy_features'):  # training goes on from it
        average.train()
    copy_features(model, average.module)
    average.eval()


@pytest.mark.parametrize('averaged', [True, False])
def test_a_mean_teacher_has_the_features_of_its_student_and_frozen_weights_keep_their_own(averaged):
    hooks = [pytest.importorskip('mmdet.engine.hooks').MeanTeacherHook()] * averaged
    # A teacher may be a network of its own, as mmrazor distils from.
    dims = dict(student=(32, 32), teacher=(32, 32) if averaged else (64,))
    model = torch.nn.ModuleDict(
        {
            name: torch.nn.ModuleList(PerformerAttention(one, 2, (7, 7)) for one in each)
            for name, each in dims.items()
        }
    )
    model.student[0].requires_grad_(False)
    model.teacher.requires_grad_(False)
    runner = SimpleNamespace(model=torch.nn.DataParallel(model), iter=0, hooks=hooks)

    def matrices(network):
        return [part.projection_matrix.clone() for part in network]

    before, own = matrices(model.student), matrices(model.teacher)
    hook = HOOKS.build(dict(type='RedrawFeaturesHook', interval=1))
    hook.before_train(runner)
    assert all(map(torch.equal, matrices(model.teacher), before if averaged else own))
    hook.after_train_iter(runner, 0)
    drawn = matrices(model.student)
    assert list(map(torch.equal, before, drawn)) == [True, False]
    assert all(map(torch.equal, matrices(model.teacher), drawn if averaged else own))


# ---- a whole training


def saved_tensors(path, where, name) -> list:
    return [v for k, v in torch.load(path, weights_only=False)[where].items() if k.endswith(name)]


@pytest.mark.parametrize(('buffers', 'expected'), [(False, 4), (True, 2.265625)])
def test_a_training_with_averages_goes_on_after_a_break(tmp_path, buffers, expected):
    hooks = dict(
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=False)),
        custom_hooks=[
            dict(type='RedrawFeaturesHook', interval=1),
            dict(type='EMAHook', momentum=0.25, update_buffers=buffers),
        ],
    )
    options = dict(type='PVT', attn_cfg=dict(type='PerformerAttention'))
    options.update(norm_cfg=dict(type='PRepBN', steps=4))
    train(tmp_path / 'one', Toy(**options), 2, **hooks)
    source = dict(load_from=str(tmp_path / 'one/iter_2.pth'), resume=True)
    resumed = train(tmp_path / 'other', Toy(**options), 4, **hooks, **source)
    trained = {m.forwards.item() for m in resumed.model.modules() if isinstance(m, PRepBN)}
    assert trained == {4}
    path = tmp_path / 'other/iter_4.pth'
    # These are the averages: of 1, 2, 3 and 4, of which the first is copied.
    assert {v.item() for v in saved_tensors(path, 'state_dict', '.forwards')} == {expected}
    assert {v.item() for v in saved_tensors(path, 'ema_state_dict', '.forwards')} == {4}
    pairs = zip(
        *(
            saved_tensors(path, where, 'projection_matrix')
            for where in ('state_dict', 'ema_state_dict')
        )
    )
    assert all(torch.equal(*pair) for pair in pairs)
