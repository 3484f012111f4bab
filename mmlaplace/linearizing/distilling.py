"""Train the attentions of a backbone to give the maps of another one."""

import hashlib
import math
import time
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.dataset import InfiniteSampler
from rich.progress import track
from torch import Tensor

from ..writing import write_whole

WARM_UP = 0.1  # share of the steps
EVERY = 50  # steps between two losses of the log, and two states on disk


class Schedule(NamedTuple):
    """How a backbone is distilled.

    Attributes:
        layer_steps: Steps in which each attention alone learns the output of the old one. Default:
            500.
        whole_steps: Steps in which the whole backbone learns the maps, and a classifier the
            logits. Default: 500.
        lr: Largest learning rate. Default: 1e-3.
        weight_decay: Of the matrices. Default: 0.05.
    """

    layer_steps: int = 500
    whole_steps: int = 500
    lr: float = 1e-3
    weight_decay: float = 0.05


def relative_error(out: Tensor, wanted: Tensor) -> Tensor:
    """Mean squared error, in units of the mean square of what is wanted."""
    out, wanted = out.float(), wanted.float()
    return F.mse_loss(out, wanted) / wanted.square().mean().clamp(min=1e-12)


def layer_loss(new: nn.Module, old: nn.Module, places: Iterable[str], images: Tensor) -> Tensor:
    """Mean over the attentions of the relative error, given the old attention's inputs.

    .. math:: \\frac{1}{L} \\sum_l \\frac{\\lVert f_l(x_l) - y_l \\rVert^2}{\\lVert y_l \\rVert^2}

    Args:
        new, old: The backbones.
        places: Names of the L attentions that differ.
        images: Input of the backbones ``(B, C, H, W)``.
    """
    with calls_recorded(old, places) as calls, torch.no_grad():
        old(images)
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
            found.float().log_softmax(-1), target.float().log_softmax(-1),
            reduction='batchmean', log_target=True,
        )  # fmt: skip
    return loss


def maps_loss(maps: Iterable[Tensor], wanted: Iterable[Tensor]) -> Tensor:
    """Mean of the relative errors of a backbone's maps."""
    return torch.stack([relative_error(*pair) for pair in zip(maps, wanted)]).mean()


def logits(model: Any, maps: Any) -> Optional[Tensor]:
    """The logits ``(B, classes)`` of a classifier's maps. None for another model."""
    if getattr(model, 'head', None) is None:
        return None
    neck = getattr(model, 'neck', None)
    return model.head(maps if neck is None else neck(maps))


def fit(
    module: nn.Module,
    parameters: List[nn.Parameter],
    loss_of: Callable[[Any], Tensor],
    batches: Callable[[int], Iterator],
    steps: int,
    schedule: Schedule,
    state: Optional[Dict[str, Any]] = None,
    save: Optional[Callable[[Dict[str, Any]], None]] = None,
    title: str = 'training',
) -> Dict[str, Any]:
    """Minimise a loss by AdamW, whose rate rises in a tenth of the steps and falls by a cosine.

    Gradients are clipped to a norm of 1. Vectors have no weight decay.

    Args:
        module: What is trained, for its weights in the state.
        parameters: The parameters to train.
        loss_of: Gives the loss of a batch.
        batches: Gives the batches from a step on, without an end.
        steps: Number of steps.
        schedule: The rate and the decay.
        state: What ``save`` was given in an earlier run, to go on from there. Default: none.
        save: Called every 50 steps with ``step``, ``losses``, ``seconds``, ``module`` and
            ``optimizer``. Default: none.
        title: Of the progress bar. Default: 'training'.

    Returns:
        ``losses``, the means of each 50 steps, and ``seconds`` of the processor.

    Raises:
        FloatingPointError: If a loss is not finite.
    """
    groups = [
        dict(params=[p for p in parameters if p.dim() > 1], weight_decay=schedule.weight_decay),
        dict(params=[p for p in parameters if p.dim() <= 1], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group['params']], schedule.lr)
    first, losses, before = 0, [], 0.0
    if state is not None:
        first, losses, before = state['step'], list(state['losses']), state['seconds']
        module.load_state_dict(state['module'])
        optimizer.load_state_dict(state['optimizer'])
    start, recent, following = time.process_time(), [], batches(first)
    for step in track(range(first, steps), title, transient=True):
        for group in optimizer.param_groups:
            group['lr'] = schedule.lr * rate(step, steps)
        loss = loss_of(next(following))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        recent.append(loss.item())
        if not math.isfinite(recent[-1]):
            raise FloatingPointError(
                f'the loss is {recent[-1]} in step {step}; lower the learning rate, {schedule.lr}'
            )
        if len(recent) == EVERY or step + 1 == steps:
            losses.append(round(sum(recent) / len(recent), 5))
            recent = []
            seconds = before + time.process_time() - start
            if save is not None:
                made = dict(step=step + 1, losses=losses, seconds=seconds)
                save(dict(made, module=module.state_dict(), optimizer=optimizer.state_dict()))
    return dict(losses=losses, seconds=round(before + time.process_time() - start, 1))


def rate(step: int, steps: int) -> float:
    """The learning rate of a step, in units of the largest."""
    rise = max(1, round(WARM_UP * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.01 + 0.99 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise))) / 2


def distill(
    new: Any,
    old: Any,
    places: Iterable[str],
    batches: Callable[[int], Iterator[Tensor]],
    schedule: Schedule,
    state_file: Optional[Path] = None,
    settings: Optional[dict] = None,
    watch: Optional[Callable[[Dict[str, Any]], None]] = None,
) -> Dict[str, dict]:
    """Train a new backbone to imitate an old one: layer by layer, then as a whole.

    The head of the new model is not trained.

    Args:
        new, old: The models, with a ``backbone`` each. The old one does not change.
        places: Names of the attentions that differ, in both backbones.
        batches: Gives the images ``(B, C, H, W)`` for the backbones from a step on, without an end.
        schedule: Steps and learning rate.
        state_file: File in which the state is kept, and from which a run goes on. Default: none.
        settings: What a state must have been made with, beside the weights of ``old``. Default:
            none.
        watch: Called with what ``save`` of :func:`fit` is given, as often. Default: none.

    Returns:
        For each phase the result of :func:`fit`.

    Raises:
        ValueError: If ``state_file`` was made with other settings, or from another old model.
    """
    places = list(places)
    old.eval().requires_grad_(False)
    settings = dict(settings or {}, weights_sha256=weights_sha256(old))
    kept = read_state(state_file, settings)
    done: Dict[str, dict] = dict(kept.get('done', {}))
    phases = (
        ('layers', schedule.layer_steps, partial(layer_loss, new.backbone, old.backbone, places)),
        ('whole', schedule.whole_steps, partial(whole_loss, new, old)),
    )
    for phase, steps, loss_of in phases:
        if phase in done:
            continue
        new.eval()
        parts = [new.backbone.get_submodule(p) for p in places] if phase == 'layers' else []
        for part in parts or [new.backbone]:
            part.train()
        parameters = [
            p for part in parts or [new.backbone] for p in part.parameters() if p.requires_grad
        ]
        state = kept.get('state') if kept.get('phase') == phase else None

        def save(state: dict, phase: str = phase) -> None:
            if watch is not None:
                watch(state)
            if state_file is not None:
                write_state(
                    state_file, dict(settings=settings, phase=phase, done=done, state=state)
                )

        done[phase] = fit(new, parameters, loss_of, batches, steps, schedule, state, save, phase)
        new.eval()
    return done


def weights_sha256(module: nn.Module) -> str:
    """The SHA-256 of all names and values in the state dict of a module."""
    content = hashlib.sha256()
    for name, value in module.state_dict().items():
        content.update(f'{name} {value.dtype} {tuple(value.shape)}'.encode())
        content.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return content.hexdigest()


def read_state(path: Optional[Path], settings: Optional[dict]) -> Dict[str, Any]:
    """The state of an interrupted run, or an empty one.

    Raises:
        ValueError: If it was made with other settings, or cannot be read.
    """
    if path is None or not path.is_file():
        return {}
    try:
        kept = torch.load(path, map_location='cpu', weights_only=True)
        made_with = kept['settings']
    except Exception as error:  # an unpickler may raise anything
        raise ValueError(
            f'{path} cannot be read as the state of a run ({type(error).__name__}); remove it to '
            'start again'
        ) from error
    if made_with != settings:
        raise ValueError(
            f'{path} is of a run with {made_with}, but now the settings are {settings}, where '
            'weights_sha256 is of the model to linearize; take another --work-dir, or remove that '
            'file'
        )
    return kept


def write_state(path: Path, content: Dict[str, Any]) -> None:
    """Write a state in one step, so that a killed run leaves a whole file."""
    file = BytesIO()
    torch.save(content, file)
    write_whole(path, file.getvalue())


def image_batches(model: Any, loader: Any) -> Callable[[int], Iterator[Tensor]]:
    """What :func:`distill` takes: the images of a data loader, as the model normalises them.

    Args:
        model: A model with a ``data_preprocessor``.
        loader: The data loader, whose passes are shuffled anew.

    Raises:
        ValueError: If the loader has no batch.
    """
    if len(loader) == 0:
        raise ValueError(
            f'the {len(loader.dataset)} images of the train_dataloader make no whole batch; lower '
            'its batch_size, or set drop_last=False'
        )

    def passes(step: int) -> Iterator[Any]:
        while True:
            if hasattr(loader.sampler, 'set_epoch'):
                loader.sampler.set_epoch(step)
            for data in loader:
                step += 1
                yield data

    # InfiniteSampler can be iterated only once, so all calls share its iterator.
    endless = passes(0) if isinstance(loader.sampler, InfiniteSampler) else None

    def batches(step: int) -> Iterator[Tensor]:
        following = passes(step) if endless is None else islice(endless, step, None)
        for data in following:
            yield model.data_preprocessor(data, True)['inputs']

    return batches
