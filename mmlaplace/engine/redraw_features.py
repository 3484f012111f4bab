"""Draw new random features for Performer while it trains."""

from typing import Any, Iterator, Tuple

import torch.nn as nn
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner


def copy_features(model: nn.Module, copy: nn.Module) -> None:
    """Give a copy of a model the random features of the model.

    An average of random features is no draw of them, and weights that train get used to their draw.
    So a copy that has averaged weights needs the last draw of the model. Call it after ``redraw()``
    where you average models yourself, as with ``torch.optim.swa_utils.AveragedModel(model,
    use_buffers=True)``. In a config, :class:`RedrawFeaturesHook` does it.

    Args:
        model: The model that trains.
        copy: A model of the same modules. An average is its attribute ``module``.

    Raises:
        KeyError: If the copy lacks a module of the model with random features.

    Examples:
        >>> import torch
        >>> from mmlaplace.engine import copy_features
        >>> from mmlaplace.models import PerformerAttention
        >>> model = PerformerAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        >>> model.redraw()
        >>> copy_features(model, averaged.module)
        >>> torch.equal(model.projection_matrix, averaged.module.projection_matrix)
        True
    """
    parts = dict(copy.named_modules())
    for path, module in model.named_modules():
        if hasattr(module, 'redraw'):
            for name, buffer in module.named_buffers(recurse=False):
                parts[path].get_buffer(name).copy_(buffer)


@HOOKS.register_module()
class RedrawFeaturesHook(Hook):
    """Draws the random features of a model again, the same in all processes.

    It calls ``redraw()`` of every module that has this method, such as
    :class:`~mmlaplace.models.attentions.PerformerAttention`, and sends their buffers from the first
    process to the others. A module without a parameter that trains, as in ``frozen_stages``, keeps
    its features, which its weights are used to.

    The averaged model of an ``EMAHook`` gets the same features, and so does the ``teacher`` of a
    ``student`` that mmdet's ``MeanTeacherHook`` averages. This is done when training starts, too.
    A teacher that was trained before, as in distillation, keeps its features.

    Args:
        interval: Training iterations between two draws. Default: 1000, as the authors of Performer
            have it.

    Raises:
        ValueError: If ``interval`` is below 1.

    Source: Rethinking Attention with Performers (arXiv 2009.14794).

    Examples:
        >>> custom_hooks = [dict(type='RedrawFeaturesHook', interval=1000)]
    """

    def __init__(self, interval: int = 1000) -> None:
        if interval < 1:
            raise ValueError(f'interval must be at least 1, got {interval}')
        self.interval = interval

    def before_train(self, runner: Runner) -> None:
        for model, copy in _copies(runner):
            copy_features(model, copy)

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if not self.every_n_train_iters(runner, self.interval):
            return
        for module in runner.model.modules():
            redraw = getattr(module, 'redraw', None)
            if redraw is not None and any(p.requires_grad for p in module.parameters()):
                redraw()
                for buffer in module.buffers(recurse=False):
                    broadcast(buffer)
        for model, copy in _copies(runner):
            copy_features(model, copy)


def _copies(runner: Runner) -> Iterator[Tuple[nn.Module, nn.Module]]:
    """Pairs of a model in training and its averaged copy."""
    model: Any = runner.model.module if is_model_wrapper(runner.model) else runner.model
    for hook in runner.hooks:
        if hasattr(hook, 'ema_model'):
            yield model, hook.ema_model.module
        if hasattr(hook, 'momentum_update'):  # mmdet's MeanTeacherHook
            yield model.student, model.teacher
