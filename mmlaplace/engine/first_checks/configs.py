"""What a config alone shows: names of weights that do not exist, a device that is not there."""

from typing import Any, Iterator

import torch
from mmengine.config import Config
from mmengine.device import get_device

from ...checkpoints.released import is_released, released_place
from .errors import FirstCheckError

# What loads weights. Other variables of a config are for the config alone.
LOADING = ('load_from', 'model', 'custom_hooks')


def is_on(cfg: Config) -> bool:
    """Whether a config has the first checks. ``first_checks = False`` leaves them out."""
    return bool(cfg.get('first_checks', True))


def check_config(cfg: Config, train: bool = True) -> None:
    """Check all that needs no data, no network and no model.

    Args:
        cfg: The config of a run.
        train: Whether the run trains. A test builds no optimizer, and loads no ``init_cfg``.
            Default: True.

    Raises:
        FirstCheckError: For a name ``mmlaplace://NAME`` without released weights, for a ``device``
            that mmengine will not take, for a ``topk`` above the classes, and for mixed precision
            without a GPU.

    Examples:
        >>> from mmengine.config import Config
        >>> from mmlaplace.engine import check_config
        >>> check_config(Config(dict(load_from='mmlaplace://ravlt-tiny')))
    """
    parts = LOADING if train else ('load_from',)
    for checkpoint in filter(is_released, _texts([cfg.get(part) for part in parts])):
        try:
            released_place(checkpoint)
        except ValueError as error:
            raise FirstCheckError(f'{checkpoint}: {error}') from None
    _check_device(cfg)
    _check_topk(cfg, 'val_evaluator' if train else 'test_evaluator')
    if train:
        _check_precision(cfg)


def _texts(value: Any) -> Iterator[str]:
    """All texts among the values of a config."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _check_device(cfg: Config) -> None:
    taken, asked = get_device(), cfg.get('device')
    if isinstance(asked, str) and torch.device(asked).type != torch.device(taken).type:
        fix = (
            'hide the GPUs, CUDA_VISIBLE_DEVICES=-1 in front of the command'
            if asked == 'cpu'
            else 'torch finds no such device here; install a torch that does, or leave device out'
        )
        raise FirstCheckError(
            f'device={asked!r} has no effect: mmengine takes the {taken} by itself; {fix}'
        )


def _check_topk(cfg: Config, name: str) -> None:
    """Compare the metrics with the classes, as they fail at the end of the first epoch."""
    classes = ((cfg.get('model') or {}).get('head') or {}).get('num_classes')
    metrics = cfg.get(name) or ()
    for metric in [metrics] if isinstance(metrics, dict) else metrics:
        topk = metric.get('topk', ()) if isinstance(metric, dict) else ()
        largest = max(topk) if isinstance(topk, (list, tuple)) and topk else topk or 0
        if isinstance(classes, int) and isinstance(largest, int) and largest > classes:
            raise FirstCheckError(
                f'{name} has topk={topk}, and model.head has num_classes={classes}; set topk=(1,) '
                f'in {name} and model.head'
            )


def _check_precision(cfg: Config) -> None:
    wrapper = cfg.get('optim_wrapper') or {}
    kind = wrapper.get('type') if isinstance(wrapper, dict) else None
    if get_device() == 'cpu' and getattr(kind, '__name__', kind) == 'AmpOptimWrapper':
        raise FirstCheckError(
            '--amp (an AmpOptimWrapper) needs a GPU, and torch finds none here; leave out --amp, '
            "or set optim_wrapper.type='OptimWrapper'"
        )
