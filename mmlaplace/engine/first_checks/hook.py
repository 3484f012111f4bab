"""A hook that checks a run before its first step."""

import time
from typing import Any, Dict, Mapping, Tuple

from mmengine.hooks import Hook
from mmengine.optim import LinearParamScheduler
from mmengine.registry import HOOKS, DefaultScope
from mmengine.runner import BaseLoop, IterBasedTrainLoop, Runner, find_latest_checkpoint

from .checkpointing import watch_checkpointing
from .configs import check_config, is_on
from .data import check_data
from .errors import pass_over
from .leaves import classes_of, leaves_of
from .maps import check_maps
from .optimizers import check_optimizer
from .weights import check_classes, check_weights

# In the hub of messages, not in checkpoints: whether the data of this run was checked, and why
# nothing was trained.
CHECKED, NOTHING_LEFT = 'first_checks', 'nothing_left'
# Of FlexibleRunner. Runner has none.
WITH_WHOLE_WEIGHTS = ('NoneType', 'SingleDeviceStrategy', 'DDPStrategy')


@HOOKS.register_module()
class FirstChecksHook(Hook):
    """Refuse a run that cannot work, before its first step, in one sentence.

    It compares classes, annotations, masks, images and weights with one another and with the model,
    and logs one image of each split as the model gets it. The first step is refused if a part that
    ``activation_checkpointing`` names would get no gradient. Large data is sampled: 4,096 labels,
    256 headers of images, 64 masks, and annotation files of up to 64 MiB. Checks that cannot be
    made of a data set or model are passed over, which the log says at level DEBUG.

    Our configs have the hook, and our tools add it to every other config. The toolboxes' own tools
    have it from a config::

        custom_imports = dict(imports=['mmlaplace'])
        default_hooks = dict(first_checks=dict(type='FirstChecksHook'))

    ``first_checks = False`` at the top of a config, or ``--cfg-options first_checks=False``,
    switches the checks off.

    Raises:
        FirstCheckError: With the file, the value and the fix.

    Examples:
        >>> from mmengine.registry import HOOKS
        >>> import mmlaplace
        >>> HOOKS.build(dict(type='FirstChecksHook')).priority
        'LOWEST'
    """

    priority = 'LOWEST'  # so that it sees a checkpoint as EMAHook and others leave it

    def before_run(self, runner: Runner) -> None:
        """Check the config, the data and the maps of the model."""
        if not is_on(runner.cfg):
            return
        start = time.perf_counter()
        datasets = _datasets_of(runner)
        check_config(runner.cfg, train='train' in datasets)
        scope = DefaultScope.get_current_instance()
        lines = check_data(datasets, _unwrapped(runner), scope.scope_name if scope else None)
        if 'train' in datasets:
            check_maps(runner.cfg)
        for line in lines:
            runner.logger.info(line)
        runner.message_hub.update_info(CHECKED, True, resumed=False)
        pass_over(f'nothing wrong was found in {time.perf_counter() - start:.1f} s')

    def after_load_checkpoint(self, runner: Runner, checkpoint: Dict[str, Any]) -> None:
        """Check the weights that a run starts from, goes on from, or is tested with."""
        if not is_on(runner.cfg):
            return
        strategy = type(getattr(runner, 'strategy', None)).__name__
        if strategy not in WITH_WHOLE_WEIGHTS:
            return pass_over(f'weights of a model that a {strategy} shards')
        train = isinstance(runner._train_loop, BaseLoop)
        use = ('resume' if runner._resume else 'start') if train else 'test'
        place = runner._load_from or find_latest_checkpoint(runner.work_dir)
        if isinstance(runner._resume, str):  # of FlexibleRunner
            place = runner._resume
        check_weights(runner.model, checkpoint, place, use)
        if use == 'resume':
            check_optimizer(runner.optim_wrapper, checkpoint, place)
        if use != 'start':
            check_classes(checkpoint, _classes_of(_datasets_of(runner)), place)

    def before_train(self, runner: Runner) -> None:
        """Say that a run has nothing left to train, or ends within its warm-up.

        mmengine says neither. Watch parts that may get no gradient.
        """
        checkpointed = runner.cfg.get('activation_checkpointing')
        # Graphs of torch.compile break at a hook. FlexibleRunner has another option of this name.
        if is_on(runner.cfg) and isinstance(runner, Runner) and not runner.cfg.get('compile'):
            watch_checkpointing(_unwrapped(runner), checkpointed or ())
        unit, done, wanted = _progress(runner.train_loop)
        text = ''
        if done >= wanted:
            text = (
                f'nothing is left to train: {unit} {done} of {wanted} is done; to train on, raise '
                f'train_cfg.max_{unit}s, and the end of the schedules in param_scheduler'
            )
            runner.logger.warning(text)
        runner.message_hub.update_info(NOTHING_LEFT, text, resumed=False)
        if text or not is_on(runner.cfg):
            return
        steps, warm_up = runner.train_loop.max_iters, _warm_up_of(runner)
        if warm_up >= steps:
            runner.logger.warning(
                f'the warm-up takes {warm_up} steps and the training {steps}, so the learning rate '
                'never reaches its value; set end of the warm-up in param_scheduler to a tenth of '
                f'the steps, or raise train_cfg.max_{unit}s'
            )


def _unwrapped(runner: Runner) -> Any:
    model = runner.model
    return getattr(model, 'module', model)


def _datasets_of(runner: Runner) -> Mapping[str, Any]:
    """The data sets of the loops that are built, as mmengine builds those that will run."""
    loops = {split: getattr(runner, f'_{split}_loop', None) for split in ('train', 'val', 'test')}
    return {
        split: loop.dataloader.dataset
        for split, loop in loops.items()
        if isinstance(loop, BaseLoop) and hasattr(getattr(loop, 'dataloader', None), 'dataset')
    }


def _warm_up_of(runner: Runner) -> int:
    """The steps of the longest warm-up by steps, or 0."""
    given = runner.param_schedulers
    lists = given.values() if isinstance(given, dict) else [given or ()]
    ends = [
        scheduler.end
        for schedulers in lists
        for scheduler in schedulers
        if isinstance(scheduler, LinearParamScheduler)
        and not scheduler.by_epoch
        and scheduler.start_factor < scheduler.end_factor
    ]
    return max(ends, default=0)


def _classes_of(datasets: Mapping[str, Any]) -> Tuple[str, ...]:
    for dataset in datasets.values():
        for leaf in leaves_of(dataset):
            return classes_of(leaf)
    return ()


def _progress(loop: Any) -> Tuple[str, int, int]:
    """What a loop counts, how much of it is done, and how much there will be."""
    if isinstance(loop, IterBasedTrainLoop):
        return 'iter', loop.iter, loop.max_iters
    return 'epoch', loop.epoch, loop.max_epochs
