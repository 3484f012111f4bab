"""One run of the study of linearized classifiers: swapped, distilled, and trained from scratch."""

import copy
import math
import statistics
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from ...checkpoints import load_weights
from ...linearizing import (
    Schedule,
    distill,
    fit,
    image_batches,
    keep_weights,
    linear_config,
    softmax_places,
)
from ...model_zoo import build_model
from ..runner import FolderJob
from .attention_jobs import finished, read_result
from .attention_study import STUDIES, candidates, phase_cfg

# With rotary positions and a convolution of V where they have them, as the host has.
ATTENTIONS = (
    'LaplacianAttention', 'LinearAttention', 'FLattenAttention', 'PolaAttention',
    'HedgehogAttention', 'EfficientLinearAttention', 'CosformerAttention', 'MALAAttention',
    'NystromformerAttention', 'XCAttention',
)  # fmt: skip
HOST, STUDY = 'laplacianformer', 'fashion'
PHASE = STUDIES[STUDY].phases[-1]._replace(epochs=9)  # of the softmax classifiers
LAYER_SHARE = 0.25  # of the time, for the first phase of the distillation
TIMED_STEPS = 7
COLUMNS = ('softmax', 'swapped', 'layers', 'distilled', 'scratch')


def settings_of(attention: str, seed: int, epochs: float) -> dict:
    """The settings on which a result depends.

    Args:
        attention: A key of :func:`candidates`.
        seed: Seed of the softmax classifier and of the run.
        epochs: Length of the training from scratch. The distillation takes as long.
    """
    return dict(attention=attention, seed=seed, epochs=epochs, phase=PHASE._asdict())


def study_cfg(attn_cfg: dict, data_root: Path) -> Config:
    """The config of a classifier with an attention."""
    return phase_cfg(HOST, attn_cfg, PHASE, STUDIES[STUDY], data_root)


def top1(model: Any, loader: Any) -> float:
    """Share of the images of a data loader whose class the model finds, in %."""
    model.eval()
    right = total = 0
    with torch.no_grad():
        for data in loader:
            data = model.data_preprocessor(data, False)
            found = model(data['inputs'], mode='tensor').argmax(1)
            wanted = torch.cat([sample.gt_label for sample in data['data_samples']])
            right += int((found == wanted).sum())
            total += len(wanted)
    return round(100 * right / total, 2)


def labelled_batches(model: Any, loader: Any) -> Callable[[int], Iterator[dict]]:
    """As :func:`image_batches`, with the labels."""

    def batches(step: int) -> Iterator[dict]:
        while True:
            loader.sampler.set_epoch(step)
            for data in loader:
                step += 1
                yield model.data_preprocessor(data, True)

    return batches


def fresh(cfg: Config, seed: int) -> Any:
    """A model with initial weights."""
    torch.manual_seed(seed)
    model: Any = build_model(cfg)
    model.init_weights()
    return model


class Curve:
    """The accuracy of a model while it trains, at each quarter of the steps.

    Args:
        model: The model.
        loader: The test images.
        steps: Steps of the training.
        seconds: Of the trainings before this one. Default: 0.

    Attributes:
        points: Pairs of seconds of the processor, without those of the tests, and top-1 in %.
        tests: Seconds of the tests.
    """

    def __init__(self, model: Any, loader: Any, steps: int, seconds: float = 0.0):
        self.model, self.loader, self.before = model, loader, seconds
        self.marks = [math.ceil(steps * quarter / 4) for quarter in (1, 2, 3, 4)]
        self.points: List[Tuple[float, float]] = []
        self.tests = 0.0

    def __call__(self, state: dict) -> None:
        """Test the model if it passed the next quarter. It is what ``save`` of ``fit`` is."""
        passed = sum(state['step'] >= mark for mark in self.marks) - len(self.points)
        if not passed:
            return
        seconds, start = self.before + state['seconds'] - self.tests, time.process_time()
        modes = [(module, module.training) for module in self.model.modules()]
        # A short training passes several quarters at once. Its curve has four points too.
        self.points += [(round(seconds, 1), top1(self.model, self.loader))] * passed
        for module, training in modes:
            module.training = training
        self.tests += time.process_time() - start


def train(model: Any, loader: Any, steps: int, lr: float, watch: Optional[Callable] = None) -> dict:
    """Train a classifier on labels by the loop of the distillation."""
    model.train()
    schedule = Schedule(lr=lr)
    return fit(
        model,
        list(model.parameters()),
        lambda data: model.loss(**data)['loss'],
        labelled_batches(model, loader),
        steps,
        schedule,
        save=watch,
    )


def seconds_a_step(trainings: List[Callable[[int], Any]]) -> List[float]:
    """Seconds of the processor of a step of each training, measured in turn."""
    found: List[List[float]] = [[] for _ in trainings]
    for _ in range(TIMED_STEPS):
        for training, seconds in zip(trainings, found):
            start = time.process_time()
            training(1)
            seconds.append(time.process_time() - start)
    return [statistics.median(seconds[1:]) for seconds in found]


def run(attention: str, seed: int, epochs: float, checkpoint: Path, data_root: Path) -> dict:
    """Accuracies after the swap, after each phase of a distillation, and from scratch.

    Args:
        attention, seed, epochs: As in :func:`settings_of`.
        checkpoint: Weights of the softmax classifier.
        data_root: Folder with the mini data sets.

    Returns:
        ``settings``, ``top1`` with a value for each of ``COLUMNS``, the share of the weights that
        was ``kept``, ``steps`` and ``seconds`` of each training, and the ``points`` of a
        :class:`Curve` for the distillation and the training from scratch.
    """
    new_attn = dict(candidates()[attention])
    old_cfg = study_cfg(candidates()['SoftmaxAttention'], data_root)
    old: Any = build_model(old_cfg)
    load_weights(old, checkpoint)
    new_cfg = Config(old_cfg.to_dict())
    kind = new_attn.pop('type')
    new_cfg.model.backbone = linear_config(old_cfg.model.backbone, old.backbone, kind, new_attn)
    with DefaultScope.overwrite_default_scope(old_cfg.default_scope):
        loader = Runner.build_dataloader(old_cfg.train_dataloader, seed=seed)
        test_loader = Runner.build_dataloader(old_cfg.test_dataloader, seed=seed)
    new, scratch = fresh(new_cfg, seed), fresh(new_cfg, seed)
    new.head.load_state_dict(old.head.state_dict())
    places = softmax_places(old.backbone)
    kept = keep_weights(new.backbone, old.backbone, places)
    accuracy: Dict[str, float] = dict(
        softmax=top1(old, test_loader), swapped=top1(new, test_loader)
    )
    images = image_batches(old, loader)

    def distilled(model: Any, layer_steps: int, whole_steps: int, watch: Any = None) -> dict:
        schedule = Schedule(layer_steps, whole_steps)
        return distill(model, old, places, images, schedule, watch=watch)

    steps = max(1, round(epochs * len(loader)))
    layer_steps, whole_steps = steps_of(steps, copy.deepcopy(new), copy.deepcopy(scratch), loader,
                                        distilled)  # fmt: skip
    layers = Curve(new, test_loader, layer_steps)
    distilled(new, layer_steps, 0, layers)
    whole = Curve(new, test_loader, whole_steps, layers.points[-1][0])
    distilled(new, 0, whole_steps, whole)
    labels = Curve(scratch, test_loader, steps)
    train(scratch, loader, steps, PHASE.lr, labels)
    accuracy.update(
        layers=layers.points[-1][1], distilled=whole.points[-1][1], scratch=labels.points[-1][1]
    )
    return dict(
        settings=settings_of(attention, seed, epochs), top1=accuracy, kept=round(kept.share, 4),
        steps=dict(layers=layer_steps, whole=whole_steps, scratch=steps),
        seconds=dict(
            layers=layers.points[-1][0], whole=round(whole.points[-1][0] - whole.before, 1),
            scratch=labels.points[-1][0],
        ),
        points=dict(
            distilled=[(0.0, accuracy['swapped']), *layers.points, *whole.points],
            scratch=labels.points,
        ),
    )  # fmt: skip


class Linearizing(FolderJob):
    """A run of an attention and a seed, as a job.

    Args:
        attention, seed, epochs, checkpoint, data_root: As in :func:`run`.
        work_dir: Folder with a folder for each run.
    """

    def __init__(
        self, attention: str, seed: int, epochs: float, checkpoint: Path, data_root: Path,
        work_dir: Path,
    ) -> None:  # fmt: skip
        super().__init__(f'{attention}, seed {seed}')
        self.arguments = attention, seed, epochs, checkpoint, data_root
        self.settings = settings_of(attention, seed, epochs)
        self.place = work_dir / f'{attention}_{seed}'

    @property
    def folder(self) -> Path:
        return self.place

    def result(self) -> Optional[dict]:
        """The result of a finished run, or None.

        Raises:
            ValueError: If the folder has a result with other settings.
        """
        done = finished(self.place, self.settings)
        return read_result(self.place / 'result.json') if done else None

    def work(self, lock: int) -> dict:
        return run(*self.arguments)


def steps_of(
    steps: int, new: Any, scratch: Any, loader: Any, distilled: Callable[..., Any]
) -> Tuple[int, int]:
    """Steps of both phases of the distillation that take as long as a training from scratch.

    Each phase has one step at least, however long a step takes on a busy machine.
    """
    layer, whole, labels = seconds_a_step([
        lambda n: distilled(new, n, 0),
        lambda n: distilled(new, 0, n),
        lambda n: train(scratch, loader, n, 1e-6),
    ])  # fmt: skip
    time_limit = steps * labels
    first = round(LAYER_SHARE * time_limit / layer)
    return max(1, first), max(1, round((1 - LAYER_SHARE) * time_limit / whole))
