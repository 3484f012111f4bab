"""Train one attention on one host and mini data set, test it, and look into it.

compare_attentions.py runs this tool many times. It continues an interrupted training, and writes
result.json at the end.

Example:
  python tools/dataset_converters/make_mini_datasets.py --tasks textures
  python tools/analysis_tools/attention_training.py LaplacianAttention --seed 0
  python tools/analysis_tools/attention_training.py "LaplacianAttention, bandwidth=2"
"""

import json
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Dict, List, Tuple

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.runner import Runner
from PIL import Image

from mmlaplace.analysis.attention_statistics import statistics_by_stage, term_sizes
from mmlaplace.analysis.complexity import count_complexity
from mmlaplace.analysis.recording import normalized
from mmlaplace.commands.command_line import ToolParser, at_least, load_or_exit, write_json
from mmlaplace.lab.mini_datasets import fashion
from mmlaplace.lab.runner import locked
from mmlaplace.lab.side_by_side.attention_jobs import begin, finished
from mmlaplace.lab.side_by_side.attention_study import (
    HOSTS,
    STUDIES,
    Column,
    Phase,
    Study,
    backbone_cfg,
    missing_data,
    phase_cfg,
    settings_of,
)
from mmlaplace.model_zoo import build_model


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
    top1, checkpoint = {}, None
    for phase in study.phases:
        cfg = phase_cfg(host, attn_cfg, phase, study, data_root)
        cfg.randomness = dict(seed=seed)
        cfg.load_from = checkpoint
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
    backbone = model.backbone.eval()
    images = held_out_images(data_root / phase.data / 'val', phase.side, 4)
    cost = count_complexity(backbone, (3, phase.side, phase.side))
    return dict(
        parameters=cost.parameters,
        macs=cost.macs,
        matrices=statistics_by_stage(backbone, images),
        terms=term_sizes(backbone, images),
    )


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('attention', help='and its options: "PolaAttention, power=3"')
    parser.add_argument('--host', choices=list(HOSTS), help="default: the study's")
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--study', choices=list(STUDIES), default='textures')
    parser.add_argument(
        '--epochs',
        type=partial(at_least, 2),  # the first warms the rate up
        help="2 or more; default: the study's",
    )
    parser.add_argument('--data-root', type=Path, default=Path('data/mini'))
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/attention_training'))
    args = parser.parse_args()
    args.host = args.host or STUDIES[args.study].host
    try:
        settings = settings_of(args.attention, args.host, args.seed, args.study, args.epochs)
        if finished(args.work_dir, settings):
            print(f'{args.work_dir / "result.json"} is there already')
            return
        first = settings['phases'][0]
        MODELS.build(backbone_cfg(args.host, settings['attn_cfg'], first['side']))  # checks options
        if missing := missing_data(args.study, args.data_root):
            parser.error(missing)
        resumed = begin(args.work_dir, settings)
    except TypeError as error:
        sys.exit(f'{parser.prog}: error: {args.attention!r} has a value of a wrong type: {error}')
    except ValueError as error:
        sys.exit(f'{parser.prog}: error: {error}')
    # A training goes on after the call that started it was killed. Another call waits for it.
    with locked(args.work_dir):
        if finished(args.work_dir, settings):
            print(f'{args.work_dir / "result.json"} is there now, by another call')
        else:
            train_all(args, settings, resumed)


def train_all(args: Namespace, settings: dict, resumed: bool) -> None:
    """Train all phases, test, and write the result. A training that is resumed has no time."""
    study = STUDIES[args.study]._replace(phases=[Phase(**phase) for phase in settings['phases']])
    start = time.perf_counter()
    top1, cfg, checkpoint = train_and_test(
        args.host, settings['attn_cfg'], args.seed, study, args.work_dir, args.data_root
    )
    seconds = time.perf_counter() - start
    seen = look_into(cfg, checkpoint, study.phases[-1], args.data_root)
    result = dict(settings=settings, top1=top1, seconds=None if resumed else seconds, **seen)
    write_json(args.work_dir / 'result.json', result)
    print(json.dumps(top1, ensure_ascii=False))


if __name__ == '__main__':
    main()
