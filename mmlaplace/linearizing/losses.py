"""What a new backbone learns of an old one: outputs of attentions or blocks, maps, and a task."""

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Union

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

LOSSES = ('attention', 'block', 'task')


def relative_error(out: Tensor, wanted: Tensor) -> Tensor:
    """Mean squared error, in units of the mean square of what is wanted."""
    out, wanted = out.float(), wanted.float()
    return F.mse_loss(out, wanted) / wanted.square().mean().clamp(min=1e-12)


def images_of(batch: Union[Tensor, dict]) -> Tensor:
    """The images ``(B, C, H, W)`` of a batch with labels, or without."""
    return batch['inputs'] if isinstance(batch, dict) else batch


def blocks_of(places: Iterable[str]) -> List[str]:
    """Names of the blocks in which these attentions are."""
    return ['.'.join(place.split('.')[:4]) for place in places]  # stages.i.blocks.j


def layer_loss(
    new: nn.Module, old: nn.Module, places: Iterable[str], images: Union[Tensor, dict]
) -> Tensor:
    """Mean over the attentions of the relative error, given the old attention's inputs.

    .. math:: \\frac{1}{L} \\sum_l \\frac{\\lVert f_l(x_l) - y_l \\rVert^2}{\\lVert y_l \\rVert^2}

    Args:
        new, old: The backbones.
        places: Names of the L attentions that differ, or of their blocks (:func:`blocks_of`).
        images: Input of the backbones ``(B, C, H, W)``, or a batch with it as ``inputs``.
    """
    with calls_recorded(old, places) as calls, torch.no_grad():
        old(images_of(images))
    losses = [replay_loss(new.get_submodule(place), *call) for place, call in calls.items()]
    return torch.stack(losses).mean()


def replay(attention: Any, arguments: tuple, options: dict) -> Tensor:
    """The output of an attention, given another one's call. One without masks gets no mask."""
    if 'mask' in options and not getattr(attention, 'accepts_mask', False):
        options = {}
    return attention(*arguments, **options)


def replay_loss(attention: Any, arguments: tuple, options: dict, wanted: Tensor) -> Tensor:
    """The relative error of an attention, given another one's call and its result."""
    return relative_error(replay(attention, arguments, options), wanted)


@contextmanager
def calls_recorded(module: nn.Module, places: Iterable[str]) -> Iterator[Dict[str, tuple]]:
    """A context that fills a dict: arguments, options and result of each submodule's call."""
    calls: Dict[str, tuple] = {}

    def record(place: str) -> Callable:
        def hook(part: nn.Module, arguments: tuple, options: dict, out: Tensor) -> None:
            calls[place] = (arguments, options, out)

        return hook

    hooks = [
        module.get_submodule(place).register_forward_hook(record(place), with_kwargs=True)
        for place in places
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def whole_loss(new: Any, old: Any, images: Tensor) -> Tensor:
    """Relative error of the backbone's maps, and of a classifier also the divergence of the logits.

    Args:
        new, old: The models. A classifier has a ``head``, which takes the maps, or what its
            ``neck`` makes of them.
        images: Input of the backbones ``(B, C, H, W)``.
    """
    with torch.no_grad():
        wanted = old.backbone(images)
        target = logits(old, wanted)
    maps = new.backbone(images)
    loss = maps_loss(maps, wanted)
    found = logits(new, maps)
    if found is not None and target is not None:
        loss = loss + F.kl_div(
            found.float().log_softmax(-1),
            target.float().log_softmax(-1),
            reduction='batchmean',
            log_target=True,
        )
    return loss


def task_loss(
    new: Any, old: Any, places: Iterable[str], weight: float, batch: Dict[str, Any]
) -> Tensor:
    """The model's own loss with labels, and beside it the errors of the attentions' outputs.

    .. math::
        L_{task} + \\frac{\\lambda}{L} \\sum_l
            \\frac{\\lVert f_l(\\hat x_l) - y_l \\rVert^2}{\\lVert y_l \\rVert^2}

    Here each attention gets the input that the new model gives it.

    Args:
        new, old: The models, of any toolbox.
        places: Names of the L attentions that differ.
        weight: :math:`\\lambda`.
        batch: ``inputs`` and ``data_samples``, as a data preprocessor gives them.
    """
    places = list(places)
    with calls_recorded(old.backbone, places) as wanted, torch.no_grad():
        old.backbone(batch['inputs'])
    with calls_recorded(new.backbone, places) as found:
        loss, _ = new.parse_losses(new(**batch, mode='loss'))
    errors = [relative_error(found[place][-1], wanted[place][-1]) for place in places]
    return loss + weight * torch.stack(errors).mean()


def maps_loss(maps: Iterable[Tensor], wanted: Iterable[Tensor]) -> Tensor:
    """Mean of the relative errors of a backbone's maps."""
    return torch.stack([relative_error(*pair) for pair in zip(maps, wanted)]).mean()


def logits(model: Any, maps: Any) -> Optional[Tensor]:
    """The logits ``(B, classes)`` of a classifier's maps. None for another model."""
    if getattr(model, 'head', None) is None:
        return None
    neck = getattr(model, 'neck', None)
    return model.head(maps if neck is None else neck(maps))
