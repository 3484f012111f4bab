"""Draw new random features for Performer while it trains."""

from typing import Any

from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner


@HOOKS.register_module()
class RedrawFeaturesHook(Hook):
    """Draws the random features of a model again, the same in all processes.

    It calls ``redraw()`` of every module that has this method, such as
    :class:`~mmlaplace.models.attentions.PerformerAttention`, and sends their buffers from the first
    process to the others.

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

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if not self.every_n_train_iters(runner, self.interval):
            return
        for module in runner.model.modules():
            redraw = getattr(module, 'redraw', None)
            if redraw is not None:
                redraw()
                for buffer in module.buffers(recurse=False):
                    broadcast(buffer)
