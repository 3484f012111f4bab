"""The plan of a comparison: the runs, an estimate of their time, and what a budget leaves out."""

import math
import os
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

import torch
from mmengine.registry import MODELS

from ...analysis.measuring import model_job, seconds_of
from ..probes.model import ProbeModel
from ..probes.study import Study, read_studies
from ..probes.tasks import build_probe
from ..side_by_side.attention_study import STUDIES, backbone_cfg
from .frames import Candidate

STUDY = STUDIES['textures']  # it needs no download
IMAGES, BATCH = 3600, STUDY.batch_size
BACKBONES = {'swin': 'Swin', 'vit': 'DeiT', 'pvt': 'PVT'}
# Tests after a training: 900 images of 1, 2.25 and 4 times the pixels, and no backward pass.
TESTS = 900 * 7.25 / 3
START = 10.0  # seconds of a process, for a model and its data
TIMED = 4.0  # seconds of a pass at one size, which is repeated


class Plan(NamedTuple):
    """What a comparison runs.

    Attributes:
        seeds: Number of seeds of small tasks and trainings.
        rates: Learning rates that small tasks try; of each attention the best counts.
        tasks: Names of the small tasks.
        sizes: Sides of the images for time and memory.
        backbones: Keys of ``HOSTS`` in which attentions are trained on small images.
        epochs: Epochs of each training.
        steps: Steps of a small task at most.
    """

    seeds: int = 3
    rates: Tuple[float, ...] = (0.004, 0.002, 0.008, 0.016)
    tasks: Tuple[str, ...] = ('recall', 'noise', 'one_of_many', 'offset', 'count', 'magnitude')
    sizes: Tuple[int, ...] = (224, 512, 1024)
    backbones: Tuple[str, ...] = tuple(BACKBONES)
    epochs: int = STUDY.phases[0].epochs
    steps: int = 400

    def study(self, candidates: Sequence[Candidate], device: str = 'cpu') -> Study:
        """The small tasks."""
        study = read_studies()['attentions']
        return study._replace(
            probes=[probe for probe in study.probes if probe['type'] in self.tasks],
            attentions={one.label: one.cfg for one in candidates},
            rates=list(self.rates),
            schedule={**study.schedule, 'steps': self.steps},
            device=device,
        )

    def contents(self) -> Iterator[str]:
        """A line for each part that is run, in words."""
        seeds = f'{self.seeds} seed{"s" * (self.seeds > 1)}'
        yield f'time and memory: one image at {in_words(f"{side}²" for side in self.sizes)}'
        tasks = in_words(name.replace('_', ' ') for name in self.tasks)
        rates = f'{len(self.rates)} learning rate{"s" * (len(self.rates) > 1)}'
        yield (
            f'small tasks: {tasks}; at most {self.steps} steps; at most {rates} with seed 0, and '
            f'the best of them with {seeds}'
        )
        if self.backbones:
            hosts = in_words(BACKBONES[host] for host in self.backbones)
            yield f'training on images: in {hosts}; {self.epochs} epochs; {seeds}'


# What a budget leaves out, the least important first: change of the plan, and words for the page.
CUTS: Tuple[Tuple[Dict[str, Any], str], ...] = (
    (dict(seeds=2), 'seeds: 2 of 3'),
    (dict(sizes=(224, 512)), 'time and memory at 1024²'),
    (dict(backbones=('vit', 'pvt')), 'training in Swin'),
    (dict(epochs=2), 'epochs on images: 2 of 4, so all models are far from trained'),
    (dict(seeds=1), 'seeds: 1 of 3, so there are no intervals: trust no difference'),
    (dict(rates=Plan().rates[:2]), 'learning rates of small tasks: 2 of 4'),
    (dict(tasks=('recall', 'offset', 'count')), 'small tasks noise, one of many and magnitude'),
    (dict(backbones=('pvt',)), 'training in Swin and DeiT'),
    (dict(steps=200), 'steps of small tasks: 200 of 400, so fewer are solved'),
    (dict(tasks=('recall',)), 'small tasks but recall'),
    # One rate for all is unfair to those that need another, so this goes late.
    (dict(rates=Plan().rates[:1]), 'learning rates of small tasks: 1 of 4'),
    (dict(backbones=()), 'training on images'),
)


def fitting(limit: float, estimate: Callable[[Plan], Dict[str, float]]) -> Tuple[Plan, List[str]]:
    """The largest plan whose estimate is within so many seconds, and what it leaves out.

    Raises:
        ValueError: If the smallest plan takes longer.
    """
    plan, left_out = Plan(), {}
    for change, text in (({}, ''),) + CUTS:
        plan = plan._replace(**change)
        left_out.update(dict.fromkeys(change, text))
        needed = sum(estimate(plan).values())
        if needed <= limit:
            return plan, list(left_out.values())
    raise ValueError(
        f'the smallest plan takes about {math.ceil(needed / 60)} minutes; give --budget '
        f'{math.ceil(needed / 60) + 1}, or fewer attentions by --with'
    )


class Estimate:
    """Estimates the seconds of a plan from one step of each attention, measured here.

    Args:
        candidates: The attentions.
        tell: Function that gets the label of each, before it is measured.
        at_once: Trainings at the same time.
        device: Where all runs. Default: ``'cpu'``.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        tell: Callable[[str], Any],
        at_once: int,
        device: str = 'cpu',
    ) -> None:
        place = torch.device(device)
        self.at_once = at_once
        self.task_step: Dict[str, float] = {}
        self.image_step: Dict[Tuple[str, str], float] = {}
        self.forward: Dict[str, float] = {}
        study = Plan().study(candidates, device)
        for one in candidates:
            tell(one.label)
            self.task_step[one.label] = _task_step(study, one)
            for host in BACKBONES:
                side = STUDY.phases[0].side
                backbone = MODELS.build(backbone_cfg(host, one.cfg, side)).train().to(place)
                images = torch.randn(8, 3, side, side, device=place)
                job = model_job(backbone, images, train=True)
                job()
                self.image_step[one.label, host] = seconds(job, place) * BATCH / 8
            image = torch.randn(1, 3, 224, 224, device=place)
            job = model_job(backbone.eval(), image, train=False)
            job()
            self.forward[one.label] = seconds(job, place)

    def __call__(self, plan: Plan) -> Dict[str, float]:
        """Seconds of each part."""
        # With the first rate all seeds are run, and then with one of the others.
        runs = len(plan.tasks) * (len(plan.rates) + plan.seeds - 1)
        images = plan.epochs * IMAGES + TESTS
        trainings = [
            START + self.image_step[label, host] * images / BATCH
            for label in self.task_step
            for host in plan.backbones
        ]
        passes = [
            TIMED + 12 * forward * (side / 224) ** 2
            for forward in self.forward.values()
            for side in plan.sizes
        ]
        return {
            'time and memory': sum(passes) + START * len(self.forward) / 2,
            'small tasks': runs * plan.steps * sum(self.task_step.values()),
            'training on images': plan.seeds * sum(trainings) / self.at_once,
        }


def _task_step(study: Study, one: Candidate) -> float:
    probe = build_probe(study.probes[0])
    model = ProbeModel(probe, one.cfg, **study.model).to(study.device)
    batch = probe.batch(study.schedule['batch_size'], torch.Generator()).to(study.device)

    def job() -> tuple:
        model(batch).logsumexp(1).mean().backward()
        return ()

    job()
    return 1.2 * seconds(job, torch.device(study.device))  # with the optimizer


def seconds(job: Callable, device: torch.device) -> float:
    """Seconds of the processor for a job on one thread, which no other program changes.

    On a GPU they are those of its own clock.
    """
    return seconds_of(job, device, time.process_time)


def at_once(device: str) -> int:
    """Trainings at once, of a thread each: as many as there are cores, at most 4; 1 on a GPU."""
    return 1 if device == 'cuda' else min(os.cpu_count() or 1, 4)


def in_words(names: Iterable[str]) -> str:
    """Names as a list of words, such as ``'a, b and c'``."""
    *first, last = names
    return f'{", ".join(first)} and {last}' if first else last


def minutes(seconds: float) -> str:
    """Words for a duration."""
    if seconds < 90:
        return f'{max(seconds, 1):.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} h'
