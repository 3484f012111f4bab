"""Train the attentions of a backbone to give the maps of another one."""

import hashlib
import math
import time
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional

import torch
import torch.nn as nn
from mmengine import dist
from mmengine.dataset import InfiniteSampler
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from rich.progress import track
from torch import Tensor

from ..models.layers import DropPath
from ..writing import write_whole
from .losses import LOSSES, blocks_of, layer_loss, task_loss, whole_loss

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
        accumulate: Batches of a step, whose gradients are averaged. Default: 1.
        amp: Whether losses are computed under autocast: to bf16, and to fp16 with a scaled loss on
            a GPU without bf16. Default: False.
        loss: What is learned. ``'attention'`` (default): first the outputs of the attentions, then
            maps and logits. ``'block'``: first the outputs of the whole blocks, whose other weights
            are trained too. ``'task'``: after the attentions, the whole model learns its own loss
            with labels, and beside it the outputs of the attentions.
        loss_weight: Weight of the attentions in ``'task'``. Default: 50, as in arXiv 2609.35745,
            whose errors need not have our units.

    Raises:
        ValueError: By :func:`distill`, for an unknown loss.
    """

    layer_steps: int = 500
    whole_steps: int = 500
    lr: float = 1e-3
    weight_decay: float = 0.05
    accumulate: int = 1
    amp: bool = False
    loss: str = 'attention'
    loss_weight: float = 50.0


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

    Gradients are averaged over the processes, if there are several, and clipped to a norm of 1.
    Vectors have no weight decay.

    Args:
        module: What is trained, for its weights in the state.
        parameters: The parameters to train.
        loss_of: Gives the loss of a batch.
        batches: Gives the batches from one of a number on, without an end.
        steps: Number of steps.
        schedule: The rate, the decay, ``accumulate`` and ``amp``.
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
    device = parameters[0].device
    half = half_dtype(device)
    make = AmpOptimWrapper if schedule.amp and half == torch.float16 else OptimWrapper
    wrapper = make(
        optimizer=optimizer, accumulative_counts=schedule.accumulate, clip_grad=dict(max_norm=1.0)
    )
    first, losses, before = 0, [], 0.0
    if state is not None:
        first, losses, before = state['step'], list(state['losses']), state['seconds']
        module.load_state_dict(state['module'])
        wrapper.load_state_dict(state['optimizer'])
    start, recent, following = time.process_time(), [], batches(first * schedule.accumulate)
    shown = dist.is_main_process()
    for step in track(range(first, steps), title, transient=True, disable=not shown):
        for group in optimizer.param_groups:
            group['lr'] = schedule.lr * rate(step, steps)
        wrapper.zero_grad()
        recent.append(0.0)
        for _ in range(schedule.accumulate):
            with torch.autocast(device.type, half, enabled=schedule.amp):
                loss = wrapper.scale_loss(loss_of(next(following)))
            wrapper.backward(loss)
            recent[-1] += loss.item()
        # Not by DDP: a layer's loss calls parts of the model, and no forward of the whole.
        grads = [p.grad for p in parameters if p.grad is not None]
        dist.all_reduce_params(grads, op='mean')
        wrapper.step()
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
                save(dict(made, module=module.state_dict(), optimizer=wrapper.state_dict()))
    return dict(losses=losses, seconds=round(before + time.process_time() - start, 1))


def half_dtype(device: torch.device) -> torch.dtype:
    """The dtype of autocast on a device: bf16, or fp16 on a GPU without it."""
    without = device.type == 'cuda' and not torch.cuda.is_bf16_supported()
    return torch.float16 if without else torch.bfloat16


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

    The head of the new model is trained by ``loss='task'`` alone. Of several processes, the first
    writes.

    Args:
        new, old: The models, with a ``backbone`` each. The old one does not change.
        places: Names of the attentions that differ, in both backbones.
        batches: Gives the images ``(B, C, H, W)`` for the backbones, or for ``loss='task'`` batches
            with labels, from one of a number on, without an end. See :func:`image_batches`.
        schedule: Steps, learning rate and losses.
        state_file: File in which the state is kept, and from which a run goes on. Default: none.
        settings: What a state must have been made with, beside the schedule, the number of
            processes and the weights of ``old``. Default: none.
        watch: Called with what ``save`` of :func:`fit` is given, as often. Default: none.

    Returns:
        For each phase the result of :func:`fit`.

    Raises:
        ValueError: If ``state_file`` was made with other settings, or from another old model, and
            for an unknown loss.
    """
    places = list(places)
    if schedule.loss not in LOSSES:
        raise ValueError(f'the loss must be one of {LOSSES}, got {schedule.loss!r}')
    old.eval().requires_grad_(False)
    settings = dict(
        settings or {},
        **schedule._asdict(),
        processes=dist.get_world_size(),
        weights_sha256=weights_sha256(old),
    )
    kept = read_state(state_file, settings)
    done: Dict[str, dict] = dict(kept.get('done', {}))
    names = blocks_of(places) if schedule.loss == 'block' else places
    layers = [new.backbone.get_submodule(name) for name in names]
    layers_loss = partial(layer_loss, new.backbone, old.backbone, names)
    whole = ([new.backbone], partial(whole_loss, new, old))
    if schedule.loss == 'task':
        whole = ([new], partial(task_loss, new, old, places, schedule.loss_weight))
    phases = (
        ('layers', schedule.layer_steps, layers, layers_loss),
        ('whole', schedule.whole_steps, *whole),
    )
    for phase, steps, parts, loss_of in phases:
        if phase in done:
            continue
        new.eval()
        for part in parts:
            part.train()
            for module in part.modules() if phase == 'layers' else ():
                if isinstance(module, DropPath):
                    module.eval()  # the old blocks drop nothing, so there is nothing to learn
        parameters = [p for part in parts for p in part.parameters() if p.requires_grad]
        state = kept.get('state') if kept.get('phase') == phase else None

        def save(state: dict, phase: str = phase) -> None:
            if watch is not None:
                watch(state)
            if state_file is not None and dist.is_main_process():
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


def image_batches(
    model: Any, loader: Any, labels: bool = False, preprocessor: Optional[Callable] = None
) -> Callable[[int], Iterator]:
    """What :func:`distill` takes: the images of a data loader, as the model normalises them.

    Args:
        model: A model with a ``data_preprocessor``.
        loader: The data loader, whose passes are shuffled anew.
        labels: Whether to give whole batches, with ``data_samples`` beside ``inputs``. Default:
            False, only the images.
        preprocessor: In the place of the model's, for a loader of another toolbox, such as
            :class:`ImagesAlone`. Default: None.

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

    def batches(step: int) -> Iterator:
        following = passes(step) if endless is None else islice(endless, step, None)
        for data in following:
            batch = (preprocessor or model.data_preprocessor)(data, True)
            yield batch if labels else batch['inputs']

    return batches
