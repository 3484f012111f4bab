"""Train one attention on one host and mini data set, test it, and look into it."""

import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from mmengine.config import Config
from mmengine.device import utils as mmengine_device
from mmengine.registry import MODELS
from mmengine.runner import Runner
from PIL import Image

from ...analysis.attention_statistics import statistics_by_stage, term_sizes
from ...analysis.complexity import count_complexity
from ...analysis.recording import normalized
from ...checkpoints import refuse_code
from ...commands.command_line import load_or_exit, write_json
from ...commands.terminal import keep_noise_from_terminal
from ...model_zoo import build_model
from ..mini_datasets import fashion
from ..runner import locked
from .attention_results import begin, finished
from .attention_study import (
    STUDIES,
    Column,
    Phase,
    Study,
    backbone_cfg,
    phase_cfg,
    settings_of,
)


@contextmanager
def trained_on(device: str) -> Iterator[None]:
    """A context in which mmengine's Runner takes a device, and not the first GPU that it sees.

    It has no option for that: it asks ``get_device()``, which gives a constant of its module.
    """
    before = mmengine_device.DEVICE
    mmengine_device.DEVICE = device
    try:
        yield
    finally:
        mmengine_device.DEVICE = before


def train(cfg: Config, work_dir: Path) -> str:
    """Train, or go on with what was begun, unless it is done; the last checkpoint."""
    checkpoint = work_dir / f'epoch_{cfg.train_cfg.max_epochs}.pth'
    cfg.work_dir = str(work_dir)
    if not checkpoint.is_file():
        if (work_dir / 'last_checkpoint').is_file():
            cfg.resume, cfg.load_from = True, None  # or it would resume from the phase before
        Runner.from_cfg(cfg).train()
    load_or_exit(build_model(cfg), str(checkpoint), min_matched=1)  # the Runner would run its code
    return str(checkpoint)


def tested_cfg(cfg: Config, column: Column) -> Config:
    """The config of a test of what another config trained."""
    tested = Config(cfg.to_dict())
    tested.resume = False
    dataset = tested.test_dataloader.dataset
    if column.folder:
        dataset.data_prefix = column.folder
    if column.side:
        dataset.pipeline.insert(0, dict(type='Resize', scale=(column.side, column.side)))
    if column.images:
        dataset.update(indices=column.images, serialize_data=False)  # at most these, if fewer
    tested.experiment_name = f'{column.data}_{column.side or column.folder or "test"}'
    return tested


def train_and_test(
    host: str, attn_cfg: dict, seed: int, study: Study, work_dir: Path, data_root: Path
) -> Tuple[Dict[str, float], Config, str]:
    """Top-1 by column, and the last config and checkpoint."""
    top1: Dict[str, float] = {}
    checkpoint = ''
    for phase in study.phases:
        cfg = phase_cfg(host, attn_cfg, phase, study, data_root)
        cfg.randomness = dict(seed=seed)
        cfg.load_from = checkpoint or None
        cfg.experiment_name = phase.data
        checkpoint = train(cfg, work_dir / phase.data)
        for title, column in study.columns.items():
            if column.data == phase.data:
                tested = tested_cfg(cfg, column)
                tested.load_from = checkpoint
                tested.work_dir = str(work_dir / tested.experiment_name)
                top1[title] = Runner.from_cfg(tested).test()['accuracy/top1']
    return top1, cfg, checkpoint


def held_out_images(folder: Path, side: int, count: int) -> List[torch.Tensor]:
    """The first image of each of the first classes, normalised."""
    if (folder.parent / fashion.TEST_IMAGES).is_file():
        images, labels = fashion.read_part(folder.parent, 't10k')
        photos = [Image.fromarray(images[labels == label][0]) for label in range(count)]
    else:
        folders = sorted(path for path in folder.iterdir() if path.is_dir())[:count]
        photos = [Image.open(sorted(one.iterdir())[0]) for one in folders]
    return [normalized(photo, (side, side)) for photo in photos]


def look_into(cfg: Config, checkpoint: str, phase: Phase, data_root: Path) -> dict:
    """What the trained attentions do on four held-out images, and what the model costs."""
    model = build_model(cfg)
    load_or_exit(model, checkpoint, min_matched=1)
    backbone: Any = model.backbone
    backbone.eval()
    images = held_out_images(data_root / phase.data / 'val', phase.side, 4)
    cost = count_complexity(backbone, (3, phase.side, phase.side))
    return dict(
        parameters=cost.parameters,
        macs=cost.macs,
        matrices=statistics_by_stage(backbone, images),
        terms=term_sizes(backbone, images),
    )


def check_options(name: str, host: str, study: str) -> None:
    """Build the backbone of a training once, which checks the options of its attention.

    Raises:
        ValueError: If there is no such attention or option, or it refuses a value.
    """
    settings = settings_of(name, host, 0, study, None)
    try:
        MODELS.build(backbone_cfg(host, settings['attn_cfg'], settings['phases'][0]['side']))
    except TypeError as error:
        raise ValueError(f'{name!r} has a value of a wrong type: {error}') from error


def train_attention(
    name: str,
    host: str,
    seed: int,
    study: str,
    epochs: Optional[int],
    work_dir: Path,
    data_root: Path,
    device: str = 'cpu',
) -> None:
    """Train, test, and write ``result.json``, unless it is there.

    It continues an interrupted training. A training goes on after the call that started it was
    killed, and another call waits for it. The process ends with a sentence if the folder has a
    training with other settings.

    Args:
        name, host, seed, study, epochs: As of :func:`settings_of`.
        work_dir: Folder of the training.
        data_root: Folder with a folder of data for each task.
        device: ``'cpu'`` or ``'cuda'``. Default: ``'cpu'``.
    """
    refuse_code()
    keep_noise_from_terminal()
    settings = settings_of(name, host, seed, study, epochs, device)
    try:
        if finished(work_dir, settings):
            return
        resumed = begin(work_dir, settings)
    except ValueError as error:
        sys.exit(f'error: {error}')
    with locked(work_dir):
        if not finished(work_dir, settings):
            with trained_on(device):
                result = trained_and_tested(settings, resumed, work_dir, data_root)
            write_json(work_dir / 'result.json', result)


def trained_and_tested(
    settings: dict, resumed: bool, work_dir: Path, data_root: Path
) -> Dict[str, Any]:
    """The result of a training with its tests. A training that is resumed has no time."""
    phases = tuple(Phase(**phase) for phase in settings['phases'])
    study = STUDIES[settings['study']]._replace(phases=phases)
    start = time.perf_counter()
    top1, cfg, checkpoint = train_and_test(
        settings['host'], settings['attn_cfg'], settings['seed'], study, work_dir, data_root
    )
    seconds = time.perf_counter() - start
    seen = look_into(cfg, checkpoint, phases[-1], data_root)
    sys.stdout.write(json.dumps(top1, ensure_ascii=False) + '\n')
    return dict(settings=settings, top1=top1, seconds=None if resumed else seconds, **seen)
