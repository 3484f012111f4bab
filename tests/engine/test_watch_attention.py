"""A hook shows what the attentions do while a model trains, and changes nothing."""

import json
from unittest import mock

import pytest
import torch
from conftest import CLASSIFICATION
from mmengine.config import Config
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from saved_weights import build

from mmlaplace.engine.watch_attention import largest_condition, look_at
from mmlaplace.models import LaplacianAttention

HOOK = 'WatchAttentionHook'
MINI = CLASSIFICATION / 'laplacianformer/laplacianformer-micro_1xb32_mini.py'


class Toy(BaseModel):
    """A backbone, with noise that would change if others drew random numbers."""

    def __init__(self, **backbone) -> None:
        super().__init__(dict(type='ImgDataPreprocessor'))
        self.backbone = build(drop_path_rate=0.3, **backbone)
        self.norm = torch.nn.BatchNorm1d(32)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        features = self.norm(self.backbone(inputs)[-1].mean((2, 3)))
        return dict(loss=(features - torch.rand_like(features)).square().mean())


def train(folder, model, iterations=4, hooks=None, vis_backends=(), cfg=None):
    """Some iterations of mmengine's Runner on noise."""
    torch.manual_seed(1)
    data = [dict(inputs=torch.randn(3, 32, 32), data_samples=None) for _ in range(8)]
    sampler = dict(type='DefaultSampler', shuffle=True)
    with mock.patch.object(Runner, '_log_env'):  # which asks all compilers for their version
        runner = Runner(
            model, str(folder), dict(dataset=data, batch_size=4, num_workers=0, sampler=sampler),
            train_cfg=dict(by_epoch=False, max_iters=iterations),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
            default_hooks=dict(
                checkpoint=None, logger=dict(type='LoggerHook', interval=1), **(hooks or {})
            ),
            visualizer=dict(type='Visualizer', vis_backends=list(vis_backends)),
            log_processor=dict(by_epoch=False), log_level='WARNING', randomness=dict(seed=0),
            experiment_name=folder.name, cfg=cfg,
        )  # fmt: skip
    runner.train()
    return runner


def logged(folder) -> list:
    """What the hook wrote at each look."""
    lines = next(folder.rglob('scalars.json')).read_text().splitlines()
    return [line for line in map(json.loads, lines) if 'attention/share/stage1' in line]


def watch(**options) -> dict:
    return dict(watch=dict(type=HOOK, **options))


@pytest.fixture(scope='module')
def watched(tmp_path_factory):
    """A model trained with the hook, what it wrote, and the same model trained without."""
    folder = tmp_path_factory.mktemp('watched')
    torch.manual_seed(0)
    one, other = Toy(), Toy()
    other.load_state_dict(one.state_dict())
    train(folder / 'without', one)
    local = dict(type='LocalVisBackend')
    runner = train(folder / 'with', other, hooks=watch(interval=2, images=2), vis_backends=[local])
    return one, other, runner, logged(folder / 'with')


def equal(one, other) -> bool:
    states = one.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_training_is_the_same_with_it_and_each_stage_is_logged_every_interval(watched):
    one, other, runner, looks = watched
    assert equal(one, other)
    assert all(part.training for part in runner.model.modules())
    assert [line['step'] for line in looks] == [2, 4]
    figures = [f'{name}/stage{i}' for name in ('share', 'gamma', 'condition') for i in (1, 2, 3, 4)]
    for line in looks:
        assert set(line) == {'step', *(f'attention/{figure}' for figure in figures)}
        assert all(0 < line[f'attention/share/stage{stage}'] < 1 for stage in (1, 2, 3, 4))
    # gamma starts at the square root of the tokens, 8 x 8 in stage 1, and four small steps of SGD
    # leave it near.
    assert looks[0]['attention/gamma/stage1'] == pytest.approx(8, rel=0.1)


def test_the_figures_are_those_of_the_formulas():
    backbone = build(attn_cfg=dict(type='LaplacianAttention', num_landmarks=4)).eval()
    attention = backbone.stages[0]['blocks'][0].attn
    kept, image = {}, torch.randn(1, 3, 32, 32)
    steps = ('mix', 'local_branch', 'invert')
    for step in steps:
        method = getattr(LaplacianAttention, step)

        def keep(self, *args, method=method, step=step):
            made = method(self, *args)
            if self is attention:
                kept[step] = args, made
            return made

        setattr(attention, step, keep.__get__(attention))
    with torch.no_grad():
        backbone(image)
    for step in steps:
        delattr(attention, step)
    figures = look_at(backbone, image)
    mixed, local = (kept[step][1].square().mean().sqrt().item() for step in steps[:2])
    # Both are sums of a few hundred squares in fp32.
    assert figures['share'][1] == pytest.approx(mixed / (mixed + local), rel=1e-5)
    ridged = kept['invert'][0][0].double() + attention.ridge * torch.eye(4).double()
    assert figures['condition'][1] == pytest.approx(torch.linalg.cond(ridged).max().item())
    attention.gamma.data.neg_()
    assert look_at(backbone, image)['gamma'][1] == pytest.approx(8)


@pytest.mark.parametrize(
    ('attn_cfg', 'figures'),
    [
        (dict(type='SOFTAttention'), {'share', 'condition'}),
        (dict(type='NystromformerAttention', num_landmarks=4), {'share', 'condition'}),
        (dict(type='SkyformerAttention', num_landmarks=4, lepe_kernel=0), {'condition'}),
        (dict(type='KernelAttention', normalization='whitened'), {'share', 'gamma'}),
        (dict(type='XCAttention', lepe_kernel=0), {'temperature'}),
        (dict(type='SoftmaxAttention', lepe_kernel=0), set()),
    ],
)
def test_what_an_attention_has_not_is_left_out(attn_cfg, figures):
    found = look_at(build(attn_cfg=attn_cfg), torch.randn(1, 3, 64, 64))
    assert set(found) == figures
    assert all(value > 0 for by_stage in found.values() for value in by_stage.values())


def test_a_dead_attention_has_a_share_of_zero_and_collapsed_landmarks_a_large_condition():
    attn_cfg = dict(type='LaplacianAttention', num_landmarks=4, whitening='normalized')
    backbone = build(attn_cfg=attn_cfg)
    image = torch.randn(1, 3, 64, 64)
    before = look_at(backbone, image)
    for stage in backbone.stages:
        for block in stage['blocks']:
            block.attn.qkv.weight.data.zero_()  # all keys are equal, and all values zero
            block.attn.qkv.bias.data.zero_()
            block.attn.lepe.conv.bias.data.fill_(1.0)
    after = look_at(backbone, image)
    assert after['share'][1] == 0
    # All entries of W are 1, with a ridge of 0.01: (4 + 0.01) / 0.01.
    assert after['condition'][1] == pytest.approx(401, rel=1e-6)
    assert before['condition'][1] < after['condition'][1]


def test_conditions_of_matrices_without_one():
    singular = torch.ones(2, 2)
    assert largest_condition(torch.stack([torch.eye(2), torch.diag(torch.tensor([3.0, 1.0]))]), 0) \
        == pytest.approx(3)  # fmt: skip
    assert largest_condition(singular, 0) > 1e15  # the inverse of fp64's rounding
    assert largest_condition(singular, 0.5) == pytest.approx(5)
    assert largest_condition(torch.full((2, 2), float('nan')), 0) != 0
    assert str(largest_condition(torch.full((2, 2), float('inf')), 0)) == 'nan'


def test_frozen_stages_stay_in_eval_mode_after_a_look():
    model = Toy(frozen_stages=2).train()
    before = {name: part.training for name, part in model.named_modules()}
    assert before['norm'] and not before['backbone.stages.1']
    hook = HOOKS.build(dict(type=HOOK, interval=1))
    hook.after_train_iter(mock.Mock(model=model, iter=0), 0, dict(inputs=[torch.ones(3, 32, 32)]))
    assert {name: part.training for name, part in model.named_modules()} == before


def test_it_watches_under_amp(tmp_path):
    local = dict(type='LocalVisBackend')

    class Halves(Toy):
        """Trains as by AmpOptimWrapper, which needs a GPU."""

        def train_step(self, *args, **options):
            with torch.autocast('cpu', torch.bfloat16):
                return super().train_step(*args, **options)

    train(tmp_path, Halves(), 1, watch(interval=1), [local])
    assert 0 < logged(tmp_path)[0]['attention/share/stage1'] < 1


@pytest.mark.slow
def test_a_compiled_step_is_the_same_with_and_without_it(tmp_path):
    torch.manual_seed(0)
    one, other = (Toy(attn_cfg=dict(type='SoftmaxAttention')) for _ in range(2))
    other.load_state_dict(one.state_dict())
    cfg = Config(dict(compile=dict(backend='eager')))
    for name, model, hooks in (('without', one, None), ('with', other, watch(interval=1))):
        train(tmp_path / name, model, 2, hooks, cfg=cfg)
    assert equal(one, other)


@pytest.mark.slow
def test_the_first_process_watches_the_model_inside_of_ddp(tmp_path):
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/rendezvous', rank=0, world_size=1
    )
    try:
        hook, runner = HOOKS.build(dict(type=HOOK, interval=1)), mock.Mock(iter=0)
        runner.model = MMDistributedDataParallel(Toy())
        hook.before_train(runner)
        batch = dict(inputs=[torch.randn(3, 32, 32)] * 3)
        hook.after_train_iter(runner, 0, batch)
        assert 'attention/gamma/stage4' in runner.visualizer.add_scalars.call_args[0][0]
        with mock.patch('mmlaplace.engine.watch_attention.is_main_process', return_value=False):
            hook.after_train_iter(runner, 0, batch)
        assert runner.visualizer.add_scalars.call_count == 1
    finally:
        torch.distributed.destroy_process_group()


def test_tensorboard_shows_it(tmp_path):
    accumulator = pytest.importorskip('tensorboard.backend.event_processing.event_accumulator')
    backend = dict(type='TensorboardVisBackend')
    train(tmp_path, Toy(), 2, watch(interval=1), [backend])
    events = accumulator.EventAccumulator(str(next(tmp_path.rglob('events.out.*')).parent))
    events.Reload()
    assert {'loss', 'attention/gamma/stage1'} <= set(events.Tags()['scalars'])
    assert [event.step for event in events.Scalars('attention/gamma/stage1')] == [1, 2]


@pytest.mark.slow
def test_weights_and_biases_shows_it_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip('wandb')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_SILENT', 'true')
    backend = dict(type='WandbVisBackend', init_kwargs=dict(project='mmlaplace'))
    runner = train(tmp_path, Toy(), 2, watch(interval=1), [backend])
    runner.visualizer.close()
    (file,) = tmp_path.rglob('offline-run-*/run-*.wandb')
    content = file.read_bytes()
    assert b'attention/gamma/stage1' in content and b'loss' in content


def test_the_options_of_the_command_line_that_the_documentation_has():
    cfg = Config.fromfile(MINI)
    cfg.merge_from_dict(
        {
            'default_hooks.watch.type': HOOK,
            'visualizer.vis_backends.0.type': 'TensorboardVisBackend',
        }
    )
    assert cfg.default_hooks.watch == dict(type=HOOK)
    assert cfg.default_hooks.checkpoint.type == 'AtomicCheckpointHook'
    assert cfg.visualizer.vis_backends == [dict(type='TensorboardVisBackend')]


def test_options_models_and_batches_that_do_not_fit_are_refused():
    for option in ('interval', 'images'):
        with pytest.raises(ValueError, match=f'{option} must be at least 1, got 0'):
            HOOKS.build(dict(type=HOOK, **{option: 0}))
    hook = HOOKS.build(dict(type=HOOK, interval=1))
    with pytest.raises(TypeError, match='model.backbone, and Linear has none'):
        hook.before_train(mock.Mock(model=torch.nn.Linear(1, 1)))
    with pytest.raises(TypeError, match='got tuple'):
        hook.after_train_iter(mock.Mock(model=Toy(), iter=0), 0, (torch.zeros(1, 3, 32, 32),))
