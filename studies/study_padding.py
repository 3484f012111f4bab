"""What padding does to the maps of backbones, and to a detector: docs/padding.md.

The first part asks by how much the maps of an image change when its batch is padded. The second
trains the mini RetinaNet on batches of images of three sizes, which are padded to the largest, with
and without mask_padding. It tests on single images of the largest and of the smallest size.

Written before the first run: the largest images of a batch are hardly padded, so their AP will not
differ by more than the seeds do. The smallest images have three quarters of padding in training,
and none in the test. There, LaplacianFormer will gain at least 3 AP. LaplacianFormerRows, whose
maps move by a tenth of that, will gain nothing.

Written after the runs of three epochs, which are too short to tell: 8 epochs were added. There was
no time for LaplacianFormerRows.

Examples:
  bash tools/quickstart.sh                 # the classifier from whose weights detectors start
  python tools/dataset_converters/make_mini_datasets.py --tasks detection
  python studies/study_padding.py          # all runs that the log lacks: an hour of a core
  python studies/study_padding.py --table  # the tables of the page
"""

import logging
import statistics
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any, Dict, List, Sequence

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from mmengine.runner import Runner, TestLoop
from torch import nn

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.lab.probes.results import append_result, by_key, key_of, read_results
from mmlaplace.lab.side_by_side.seed_differences import half_width
from mmlaplace.models import FAMILIES
from mmlaplace.models.layers import LayerScale
from mmlaplace.writing import markdown_table, with_tables, write_whole

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs/padding.md'
LOG = ROOT / 'docs/logs/padding.jsonl'
CONFIG = 'configs/detection/laplacianformer/retinanet_laplacianformer-micro_fpn_mini.py'
SIZES = ((256, 192), (192, 144), (128, 96))  # width and height of the images of a batch
SEEDS = (0, 1, 2)
DETECTORS = (('LaplacianFormer', 3), ('LaplacianFormer', 8))  # with epochs
SIDE = 128  # of the image whose batch is padded to twice its width


def smallest(cls: Any) -> str:
    """The smallest size of a backbone, by its blocks and channels."""
    zoo = cls.arch_zoo
    return min(zoo, key=lambda name: sum(zoo[name]['depths']) * max(zoo[name]['embed_dims']))


@torch.no_grad()
def changes(backbone: str, arch: str) -> List[float]:
    """How far each map of an image moves in a padded batch, as a share of its norm.

    Residual branches count in full, also where a scale or a norm keeps them small at the start.
    """
    torch.manual_seed(0)
    module: nn.Module = MODELS.build(dict(type=backbone, arch=arch, img_size=SIDE))
    module.init_weights()
    for part in module.modules():
        if isinstance(part, (LayerScale, nn.LayerNorm)):
            nn.init.ones_(part.weight)
    image = torch.randn(1, 3, SIDE, SIDE)
    batch = torch.cat([F.pad(image, (0, SIDE)), torch.randn(1, 3, SIDE, 2 * SIDE)])
    moved = []
    for alone, padded in zip(module.eval()(image), module(batch)):
        part = padded[:1, :, : alone.shape[2], : alone.shape[3]]
        moved.append(round(float((part - alone).norm() / alone.norm()), 4))
    return moved


def detector(
    backbone: str, mask_padding: bool, seed: int, epochs: int, weights: str, data: Path
) -> Config:
    """The mini RetinaNet, trained on batches of several sizes."""
    cfg = Config.fromfile(ROOT / CONFIG)
    cfg.model.data_preprocessor.type = 'ValidPartsDetDataPreprocessor'
    cfg.model.backbone.update(type=backbone, mask_padding=mask_padding)
    cfg.model.backbone.init_cfg.checkpoint = weights
    loader = dict(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.update(loader)
    resize = dict(type='RandomChoiceResize', scales=list(SIZES), keep_ratio=True)
    pipeline = cfg.train_dataloader.dataset.pipeline
    pipeline[2] = resize
    cfg.val_dataloader.update(loader, batch_size=1)
    for split in (cfg.train_dataloader, cfg.val_dataloader):
        split.dataset.data_root = str(data)
    cfg.val_evaluator.ann_file = str(data / 'annotations/val.json')
    cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
    cfg.train_cfg.update(max_epochs=epochs, val_interval=epochs + 1)
    cfg.param_scheduler[1].end = epochs
    cfg.default_hooks.checkpoint = None
    cfg.default_hooks.pop('visualization')
    cfg.vis_backends = cfg.visualizer.vis_backends = []
    cfg.randomness = dict(seed=seed)
    return cfg


def train_and_test(cfg: Config, backbone: str) -> Dict[str, Any]:
    """AP and AP50 in percent on single images of the largest and the smallest size."""
    with tempfile.TemporaryDirectory() as folder:
        cfg.work_dir = folder
        cfg.experiment_name = f'{backbone}_{time.time_ns()}'
        started = time.time()
        runner = Runner.from_cfg(cfg)
        runner.train()
        found: Dict[str, Any] = dict(seconds=round(time.time() - started))
        for scale in (SIZES[0], SIZES[-1]):
            loader = cfg.val_dataloader.to_dict()
            loader['dataset']['pipeline'][1]['scale'] = scale
            scores = TestLoop(runner, loader, cfg.val_evaluator.to_dict()).run()
            for name, metric in (('AP', 'coco/bbox_mAP'), ('AP50', 'coco/bbox_mAP_50')):
                found[f'{name}_{scale[0]}x{scale[1]}'] = round(100 * scores.get(metric, 0.0), 1)
        MMLogger.get_current_instance().setLevel(logging.ERROR)
    return found


def run_all(weights: str, data: Path) -> None:
    """Append what the log lacks."""
    done = by_key(read_results(LOG))
    for family in FAMILIES.values():
        for cls in family.backbones:
            settings = dict(kind='changes', backbone=cls.__name__, arch=smallest(cls), scales=1)
            if key_of(settings) not in done:
                moved = changes(cls.__name__, settings['arch'])
                append_result(LOG, dict(settings=settings, changes=moved))
    for (backbone, epochs), seed, mask_padding in product(DETECTORS, SEEDS, (False, True)):
        settings = dict(
            kind='detector',
            backbone=backbone,
            mask_padding=mask_padding,
            seed=seed,
            epochs=epochs,
            sizes=[list(size) for size in SIZES],
        )
        if key_of(settings) not in done:
            cfg = detector(backbone, mask_padding, seed, epochs, weights, data)
            scores = train_and_test(cfg, backbone)
            append_result(LOG, dict(settings=settings, **scores))
            print(settings, scores, flush=True)


def table_of_changes(results: Sequence[dict]) -> str:
    """How far maps move, the farthest first."""
    found = [result for result in results if result['settings']['kind'] == 'changes']
    found.sort(key=lambda result: -max(result['changes']))
    rows = []
    for result in found:
        settings = result['settings']
        moved = ', '.join(f'{100 * change:.1f}' for change in result['changes'])
        rows.append([f'`{settings["backbone"]}`, {settings["arch"]}', moved])
    return markdown_table(['backbone', 'change of each map, %'], rows)


def table_of_detectors(results: Sequence[dict]) -> str:
    """AP with and without masks, and their difference with an interval of the seeds."""
    found: Dict[tuple, Dict[int, dict]] = {}
    for result in results:
        settings = result['settings']
        if settings['kind'] == 'detector':
            key = settings['backbone'], settings['epochs'], settings['mask_padding']
            found.setdefault(key, {})[settings['seed']] = result
    rows = []
    for (backbone, epochs), (width, height) in product(DETECTORS, (SIZES[0], SIZES[-1])):
        metric = f'AP_{width}x{height}'
        runs = [found.get((backbone, epochs, masked), {}) for masked in (False, True)]
        seeds = sorted(set(runs[0]) & set(runs[1]))
        if not seeds:
            continue
        scores = [[run[seed][metric] for seed in seeds] for run in runs]
        gains = [masked - without for without, masked in zip(*scores)]
        cells = [
            f'{statistics.mean(values):.1f} ({", ".join(map(str, values))})' for values in scores
        ]
        gain = f'{statistics.mean(gains):+.1f}'
        gain += f' ± {half_width(gains):.1f}' if len(gains) > 1 else ''
        if len(gains) < len(SEEDS):
            gain += f' ({len(gains)} of {len(SEEDS)} seeds)'
        rows.append([f'`{backbone}`', str(epochs), f'{width} × {height}', *cells, gain])
    return markdown_table(
        ['backbone', 'epochs', 'tested on', 'padding seen', '`mask_padding=True`', 'gain'], rows
    )


TABLES = dict(changes=table_of_changes, detectors=table_of_detectors)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--data', type=Path, default=Path('data/mini/detection'))
    parser.add_argument('--weights', default='work_dirs/quickstart/epoch_11.pth')
    parser.add_argument('--table', action='store_true', help='write the tables of the page')
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.table:
        results = list(by_key(read_results(LOG)).values())
        write_whole(PAGE, with_tables(PAGE.read_text(), 'padding', lambda x: TABLES[x](results)))
        return
    run_all(args.weights, args.data)


if __name__ == '__main__':
    main()
