"""The hook makes the first checks in mmengine's Runner, before a run's first step."""

import re
from unittest import mock

import pytest
import torch
import torch.nn as nn
from mmengine.model import BaseModel
from mmengine.runner import FlexibleRunner, IterBasedTrainLoop, Runner
from small_data import build, config_of, write_folders

from mmlaplace.engine import FirstCheckError, FirstChecksHook
from mmlaplace.engine.first_checks import NOTHING_LEFT
from mmlaplace.engine.first_checks.checkpointing import watch_checkpointing

CLASSES = 3


class Classifier(BaseModel):
    """A head, and a count of the steps that were trained."""

    steps = 0

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__(dict(type='BaseDataPreprocessor'))
        self.backbone = nn.Conv2d(3, 4, 1)
        self.head = nn.Linear(4, classes)
        self.head.num_classes = classes

    def forward(self, inputs, data_samples=None, mode='tensor'):
        scores = self.head(self.backbone(torch.stack(inputs).float()).mean((2, 3)))
        if mode != 'loss':
            return [sample.set_pred_score(score) for sample, score in zip(data_samples, scores)]
        self.steps += 1
        return dict(loss=scores.square().mean())


@pytest.fixture
def runner_of(tmp_path):
    """A function that builds a runner of a classifier on six small images of three classes."""
    write_folders(tmp_path / 'images')
    dataset = build('mmpretrain', config_of('mmpretrain', tmp_path / 'images'))
    loader = dict(
        dataset=dataset,
        batch_size=3,
        num_workers=0,
        collate_fn=dict(type='pseudo_collate'),
        sampler=dict(type='DefaultSampler', shuffle=False),
    )
    number = iter(range(99))

    def make(
        model: nn.Module, test: bool = False, epochs: int = 1, kind: type = Runner, **options
    ) -> Runner:
        options.setdefault('cfg', {})
        options.setdefault('default_hooks', {})
        options['default_hooks'].setdefault('first_checks', dict(type='FirstChecksHook'))
        if test:
            evaluator = dict(type='mmpretrain.Accuracy')
            parts = dict(test_dataloader=loader, test_cfg={}, test_evaluator=evaluator)
        else:
            options.setdefault('optim_wrapper', dict(optimizer=dict(type='SGD', lr=0.01)))
            parts = dict(train_dataloader=loader, train_cfg=dict(by_epoch=True, max_epochs=epochs))
        with mock.patch.object(kind, '_log_env'):
            return kind(
                model,
                work_dir=str(tmp_path / 'run'),
                log_level='ERROR',
                experiment_name=f'{tmp_path.name} {next(number)}',
                default_scope='mmpretrain',
                **parts,
                **options,
            )

    return make


def test_a_run_is_refused_before_its_first_step(runner_of):
    model = Classifier(classes=2)
    with pytest.raises(FirstCheckError, match='label 2, and the head has num_classes=2'):
        runner_of(model).train()
    assert model.steps == 0


def test_first_checks_false_switches_all_of_them_off(runner_of, tmp_path):
    off = dict(first_checks=False, device='cuda')
    model = Classifier(classes=2)
    runner_of(model, cfg=off).train()
    assert model.steps == 2
    weights = tmp_path / 'other.pth'
    torch.save(dict(state_dict={'a.b': torch.ones(3)}), weights)
    runner_of(Classifier(), test=True, cfg=off, load_from=str(weights)).test()


def test_the_log_has_a_line_for_each_data_set(runner_of):
    runner = runner_of(Classifier())
    with mock.patch.object(runner.logger, 'info') as info:
        runner.train()
    lines = [call.args[0] for call in info.call_args_list]
    (line,) = [line for line in lines if line.startswith('train: 6 images of')]
    assert '3 classes (bee, cat, dog)' in line


def test_a_wrong_name_of_weights_is_refused_before_they_are_loaded(runner_of):
    model, name = Classifier(), 'mmlaplace://ravlt-tyni'
    cfg = dict(model=dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint=name))))
    with (
        mock.patch.object(model, 'init_weights') as load,
        pytest.raises(FirstCheckError, match='similar names are'),
    ):
        runner_of(model, cfg=cfg).train()
    load.assert_not_called()


def test_maps_are_checked_where_a_run_trains(runner_of):
    place = 'mmlaplace.engine.first_checks.hook.check_maps'
    with mock.patch(place, side_effect=FirstCheckError('of strides')):
        with pytest.raises(FirstCheckError, match='of strides'):
            runner_of(Classifier()).train()
        runner_of(Classifier(), test=True).test()


def test_a_checkpointed_part_that_gets_no_gradient_is_refused_in_the_first_step(runner_of):
    def named(*names, **options):
        return dict(cfg=dict(activation_checkpointing=list(names), **options))

    model = Classifier()
    with pytest.raises(FirstCheckError, match="names 'backbone', and no parameter .*with_cp=True"):
        runner_of(model, **named('head', 'backbone')).train()
    frozen = Classifier()
    frozen.backbone.requires_grad_(False)
    for other, options in (
        (frozen, named('backbone')),  # it needs no gradient
        (Classifier(), named('head')),
        (Classifier(), named('backbone', first_checks=False)),
    ):
        runner_of(other, **options).train()
        assert other.steps == 2
    runner_of(Classifier(), cfg=dict(activation_checkpointing='head')).train()


def test_a_part_is_not_judged_by_a_forward_that_trains_nothing():
    part = nn.Sequential(nn.Conv2d(3, 4, 1))
    model = nn.ModuleDict(dict(part=part))
    watch_checkpointing(model, ['part'])
    with torch.no_grad():
        part(torch.ones(1, 3, 2, 2))
    part(torch.ones(1, 3, 2, 2)).sum().backward()
    with torch.no_grad():
        part.forward = lambda x: torch.ones(1)  # which is not watched any longer
    assert part(torch.ones(1)).item() == 1


def test_a_test_never_scores_a_random_head(runner_of, tmp_path):
    path = str(tmp_path / 'weights.pth')
    torch.save(dict(state_dict=Classifier().state_dict()), path)
    runner_of(Classifier(), test=True, load_from=path).test()
    torch.save(dict(state_dict=Classifier().backbone.state_dict()), path)
    with pytest.raises(FirstCheckError, match=rf'{path} is not the checkpoint of this Classifier'):
        runner_of(Classifier(), test=True, load_from=path).test()
    swapped = dict(dataset_meta=dict(classes=['cat', 'bee', 'dog']))
    torch.save(dict(state_dict=Classifier().state_dict(), meta=swapped), path)
    with pytest.raises(FirstCheckError, match="class 0 as 'cat', and this data has 'bee' there"):
        runner_of(Classifier(), test=True, load_from=path).test()


def test_a_start_takes_what_fits_and_a_resumed_run_all_or_nothing(runner_of, tmp_path):
    checkpoints = dict(checkpoint=dict(type='CheckpointHook', interval=1))
    runner_of(Classifier(), default_hooks=checkpoints).train()
    path = str(tmp_path / 'run/epoch_1.pth')
    wide = dict(epochs=2, load_from=path)
    other, same = Classifier(classes=9), Classifier()
    for resumed in (wide, dict(epochs=2)):  # by its name, and the last one
        model = Classifier(classes=9)
        with pytest.raises(FirstCheckError, match='cannot be resumed: .*head.weight, head.bias'):
            runner_of(model, resume=True, **resumed).train()
        assert model.steps == 0
    runner_of(same, resume=True, **wide).train()
    assert same.steps == 2
    runner_of(other, **wide).train()
    assert other.steps == 4
    nothing = tmp_path / 'nothing.pth'
    torch.save(dict(state_dict={'a.b': torch.ones(3)}), nothing)
    with pytest.raises(FirstCheckError, match='nothing of .* would be loaded'):
        runner_of(Classifier(), load_from=str(nothing)).train()


def test_a_flexible_runner_checks_data_and_weights_that_are_whole(runner_of, tmp_path):
    def run(classes=CLASSES, **options):
        model = Classifier(classes=classes)
        runner = runner_of(model, kind=FlexibleRunner, **options)
        runner.test() if options.get('test') else runner.train()
        return model.steps

    with pytest.raises(FirstCheckError, match='label 2, and the head has num_classes=2'):
        run(classes=2)
    other = tmp_path / 'other.pth'
    torch.save(dict(state_dict={'a.b': torch.ones(3)}), other)
    with pytest.raises(FirstCheckError, match='is not the checkpoint of this Classifier'):
        run(test=True, load_from=str(other))
    with pytest.raises(FirstCheckError, match='nothing of .*other.pth would be loaded'):
        run(load_from=str(other))
    kept = dict(checkpoint=dict(type='AtomicCheckpointHook'))
    assert run(default_hooks=kept) == 2
    last = str(tmp_path / 'run/epoch_1.pth')
    for resume in (True, last):  # by a search, and by name
        with pytest.raises(FirstCheckError, match=f'load_from={last}$'):
            run(classes=4, epochs=3, resume=resume)
    assert run(epochs=3, resume=last) == 4
    run(test=True, load_from=last)
    runner = runner_of(Classifier(), kind=FlexibleRunner)
    runner.strategy = type('FSDPStrategy', (), {})()
    runner.call_hook('after_load_checkpoint', checkpoint={})  # whose weights are parts


def test_a_run_without_frozen_parameters_is_resumed_by_its_own_constructor_alone(
    runner_of, tmp_path
):
    """mmengine's constructor leaves them out with any option, and ours holds them."""
    model, decayed = Classifier(), dict(type='SGD', lr=0.01, weight_decay=0.1)
    model.backbone.requires_grad_(False)
    theirs = dict(optimizer=decayed, paramwise_cfg=dict(bias_decay_mult=0.0))
    ours = dict(optimizer=decayed, constructor='NoDecayOptimWrapperConstructor')
    checkpoints = dict(checkpoint=dict(type='CheckpointHook', interval=1))
    runner_of(model, optim_wrapper=theirs, default_hooks=checkpoints).train()
    assert model.steps == 2
    resumed = dict(resume=True, load_from=str(tmp_path / 'run/epoch_1.pth'), epochs=2)
    said = r'epoch_1.pth cannot be resumed: .* 2 parameters in 2 groups, .* 4 .*in 4 .*load_from='
    with pytest.raises(FirstCheckError, match=said):
        runner_of(model, optim_wrapper=ours, **resumed).train()
    assert model.steps == 2
    runner_of(model, optim_wrapper=theirs, **resumed).train()
    assert model.steps == 4


@pytest.mark.parametrize('cfg', [{}, dict(first_checks=False)])
def test_a_run_at_its_last_epoch_says_that_nothing_is_left(cfg, runner_of, tmp_path):
    checkpoints = dict(checkpoint=dict(type='CheckpointHook', interval=1))
    first = runner_of(Classifier(), default_hooks=checkpoints)
    first.train()
    assert first.message_hub.runtime_info[NOTHING_LEFT] == ''
    again = runner_of(Classifier(), resume=True, cfg=cfg)
    with mock.patch.object(again.logger, 'warning') as warning:
        again.train()
    text = (
        'nothing is left to train: epoch 1 of 1 is done; to train on, raise train_cfg.max_epochs, '
        'and the end of the schedules in param_scheduler'
    )
    assert again.message_hub.runtime_info[NOTHING_LEFT] == text
    warning.assert_any_call(text)
    more = Classifier()
    runner = runner_of(more, resume=True, epochs=2)
    runner.train()
    assert more.steps == 2 and runner.message_hub.runtime_info[NOTHING_LEFT] == ''


def test_iterations_are_counted_as_such():
    class Loop(IterBasedTrainLoop):
        def __init__(self) -> None:
            self._max_iters, self._iter, self._epoch, self._max_epochs = 8, 8, 1, 1

    runner = mock.Mock(train_loop=Loop())
    FirstChecksHook().before_train(runner)
    name, text = runner.message_hub.update_info.call_args.args
    assert name == NOTHING_LEFT and 'iter 8 of 8 is done' in text and 'max_iters' in text


@pytest.mark.parametrize(
    ('scheduler', 'said'),
    [
        (dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=500), '500 steps .* 2,'),
        (dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=2), '2 steps .* 2,'),
        (dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=1), ''),
        (dict(type='LinearLR', start_factor=0.01, by_epoch=True, end=500), ''),  # in epochs
        (dict(type='LinearLR', start_factor=1, end_factor=0.1, by_epoch=False, end=500), ''),
    ],
)
def test_a_warm_up_as_long_as_the_run_is_told(scheduler, said, runner_of):
    runner = runner_of(Classifier(), param_scheduler=[scheduler])
    with mock.patch.object(runner.logger, 'warning') as warning:
        runner.train()
    texts = [call.args[0] for call in warning.call_args_list if 'warm-up' in call.args[0]]
    assert len(texts) == bool(said)
    assert not said or re.search(f'the warm-up takes {said}.*a tenth.*max_epochs', texts[0])


def test_without_the_first_checks_no_warm_up_is_told(runner_of):
    long = dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=500)
    runner = runner_of(Classifier(), param_scheduler=[long], cfg=dict(first_checks=False))
    with mock.patch.object(runner.logger, 'warning') as warning:
        runner.train()
    assert not any('warm-up' in call.args[0] for call in warning.call_args_list)
