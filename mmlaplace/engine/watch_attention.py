"""A hook that shows, while a model trains, whether its attentions die."""

import re
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List

import torch
import torch.nn as nn
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor

from ..analysis.recording import in_eval_mode, root_mean_square, steps_watched
from ..models import BaseAttention

LEARNED_SCALES = ('gamma', 'temperature')  # by head


@HOOKS.register_module()
class WatchAttentionHook(Hook):
    r"""Logs figures by stage that show when a linear attention dies.

    Each ``interval`` training iterations, the first ``images`` of the batch go through
    ``model.backbone`` once more, in eval mode, in the parameters' own precision and without
    gradients. The figures go to all backends of the runner's visualizer, such as TensorBoard and
    Weights & Biases, and as one line to the log:

    - ``attention/share/stage1``: the size of the attention's term beside the local branch,

      .. math::
          \mathrm{share} =
          \frac{\mathrm{rms}(\mathrm{mix}(q, k, v))}
          {\mathrm{rms}(\mathrm{mix}(q, k, v)) + \mathrm{rms}(\mathrm{local}(v))},

      the mean over the stage's attentions. At 0 the attention is dead, and the local branch works
      alone.
    - ``attention/gamma/stage1``: the learned scale of the attention's term, the mean of its
      absolute value over heads and blocks. It is that of
      :class:`~mmlaplace.models.attentions.LaplacianAttention` and
      :class:`~mmlaplace.models.attentions.KernelAttention`. Likewise ``attention/temperature``, of
      attentions with a learned temperature.
    - ``attention/condition/stage1``: condition of the inverted matrix of landmarks, with its ridge,

      .. math:: \kappa = \sigma_{\max}(W) / \sigma_{\min}(W),

      the largest over images, heads and blocks. In fp32 an inverse has no correct digit from about
      :math:`10^7` on. An attention without an inverse has no condition.

    A figure is left out where no attention of the stage has it. Training is not changed: weights,
    running statistics and random numbers are the same as without the hook. The hook works with AMP
    and with mmengine's ``compile``, because its own pass is outside of both. With
    DistributedDataParallel the first process runs the pass for its own images.

    Args:
        interval: Training iterations between two looks. Default: 100.
        images: Number of images of the batch for the pass. Those of another size than the first
            are left out. Default: 2.

    Raises:
        ValueError: If ``interval`` or ``images`` is below 1.
        TypeError: When training starts, if the model has no ``backbone``, or if FSDP spreads it
            over processes, of which one alone cannot run it. At the first look, if the batch is no
            dict with ``inputs``.

    Examples:
        >>> custom_hooks = [dict(type='WatchAttentionHook', interval=100)]
    """

    def __init__(self, interval: int = 100, images: int = 2) -> None:
        for name, value in (('interval', interval), ('images', images)):
            if value < 1:
                raise ValueError(f'{name} must be at least 1, got {value}')
        self.interval = interval
        self.images = images

    def before_train(self, runner: Runner) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        if any(isinstance(part, FullyShardedDataParallel) for part in runner.model.modules()):
            raise TypeError(
                'WatchAttentionHook cannot watch a model that FSDP shards over processes; take it '
                'out of custom_hooks'
            )
        model = _unwrapped(runner.model)
        if not isinstance(getattr(model, 'backbone', None), nn.Module):
            raise TypeError(
                f'WatchAttentionHook watches model.backbone, and {type(model).__name__} has none; '
                'take it out of custom_hooks'
            )

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if not self.every_n_train_iters(runner, self.interval) or not is_main_process():
            return
        model = _unwrapped(runner.model)
        with _undisturbed(model):
            figures = look_at(model.backbone, self._inputs(model, data_batch))
        scalars = {
            f'attention/{name}/stage{stage}': value
            for name, by_stage in figures.items()
            for stage, value in by_stage.items()
        }
        if scalars:
            runner.visualizer.add_scalars(scalars, step=runner.iter + 1)
            runner.logger.info('attention by stage: ' + _line(figures))

    def _inputs(self, model: Any, data_batch: Any) -> Tensor:
        """The first images, as the backbone gets them when the model is tested."""
        if not isinstance(data_batch, dict) or 'inputs' not in data_batch:
            raise TypeError(
                'WatchAttentionHook expects batches dict(inputs=…, data_samples=…), got '
                f'{type(data_batch).__name__}; take it out of custom_hooks'
            )
        images = data_batch['inputs'][: self.images]
        # Models are tested on images of one size.
        kept = [i for i, image in enumerate(images) if image.shape == images[0].shape]
        kept_batch: Dict[str, Any] = {}
        for key, values in data_batch.items():
            if isinstance(values, Tensor):
                kept_batch[key] = values[kept]
            elif values is not None:
                kept_batch[key] = [values[i] for i in kept]
        inputs = model.data_preprocessor(kept_batch, False)['inputs']
        inputs = torch.stack(inputs) if isinstance(inputs, list) else inputs
        dtype = next(model.backbone.parameters()).dtype
        return inputs.to(dtype) if inputs.is_floating_point() else inputs


def look_at(backbone: nn.Module, inputs: Tensor) -> Dict[str, Dict[int, float]]:
    """The figures of :class:`WatchAttentionHook` for one forward pass without gradients.

    Args:
        backbone: With attentions of this project. Those outside of ``stages`` count as stage 1.
        inputs: Inputs of the backbone, such as images ``(B, 3, H, W)``.

    Returns:
        ``share``, ``gamma``, ``temperature`` and ``condition``, each by number of the stage from 1.
        A figure that no attention has is left out.
    """
    sizes: Dict[str, Dict[str, float]] = {}
    noted: Dict[str, Dict[int, List[float]]] = {}

    def note(figure: str, name: str, value: float) -> None:
        place = re.search(r'\bstages\.(\d+)\.', name)
        stage = 1 + int(place[1]) if place else 1
        noted.setdefault(figure, {}).setdefault(stage, []).append(value)

    def see(name, attention, step, arguments, output):
        if step in ('mix', 'local_branch'):
            if output is not None:
                sizes.setdefault(name, {})[step] = root_mean_square(output)
        else:
            # invert adds the ridge itself. What pseudo_invert gets has it already.
            ridge = attention.ridge if step == 'invert' else 0.0
            note('condition', name, largest_condition(arguments[0], ridge))

    steps = ('mix', 'local_branch', 'invert', 'pseudo_invert')
    with steps_watched(backbone, BaseAttention, steps, see), torch.no_grad():
        backbone(inputs)
    for name, parts in sizes.items():
        if len(parts) == 2:
            total = parts['mix'] + parts['local_branch']
            note('share', name, parts['mix'] / total if total else 0.0)
    for name, attention in backbone.named_modules():
        if not isinstance(attention, BaseAttention):
            continue
        for scale in LEARNED_SCALES:
            if isinstance(getattr(attention, scale, None), nn.Parameter):
                note(scale, name, getattr(attention, scale).detach().abs().mean().item())
    figures: Dict[str, Dict[int, float]] = {}
    for figure, by_stage in noted.items():
        figures[figure] = {}
        for stage, values in sorted(by_stage.items()):
            if figure == 'condition':
                figures[figure][stage] = max(values)
            else:
                figures[figure][stage] = sum(values) / len(values)
    return figures


def largest_condition(mat: Tensor, ridge: float) -> float:
    """The largest of the conditions of ``mat + ridge * I``, for matrices ``(..., m, m)``.

    It is infinite for a singular matrix, and NaN if a value is not finite.
    """
    mat = mat.detach().double().cpu()  # a GPU is slower at small decompositions, and may lack fp64
    if not mat.isfinite().all():
        return float('nan')
    values = torch.linalg.svdvals(mat + ridge * torch.eye(mat.shape[-1], dtype=mat.dtype))
    return (values[..., 0] / values[..., -1]).max().item()


def _unwrapped(model: nn.Module) -> Any:
    return model.module if is_model_wrapper(model) else model


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """A context with eval mode and its own random numbers."""
    device = next(model.parameters()).device
    with in_eval_mode(model), torch.random.fork_rng([device] if device.type == 'cuda' else []):
        yield


def _line(figures: Dict[str, Dict[int, float]]) -> str:
    return '; '.join(
        f'{name} ' + ', '.join(f'{stage}: {value:.3g}' for stage, value in by_stage.items())
        for name, by_stage in figures.items()
    )
