"""``python -m mmlaplace verify``: a released file, tested on the data of its published score.

It downloads the authors' file, checks it, loads it, runs the test of its config, and prints the
published score beside the measured one. The JSON can be sent as a pull request, into
docs/logs/verified, from which docs/released_weights.md has its table.

Examples:
  python -m mmlaplace verify cswin-tiny --data data/imagenet/val
  python -m mmlaplace verify mask-rcnn_mlla-tiny_fpn_ms-1x_coco --data data/coco --device cuda
  python -m mmlaplace verify cswin-tiny_upernet_8xb2-160k_ade20k-512x512 \\
      --data data/ade/ADEChallengeData2016
"""

import importlib
import json
import sys
import tempfile
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Sequence

import torch
from mmengine.config import Config
from mmengine.runner import Runner

from ..checkpoints import load_weights
from ..checkpoints._download import DownloadError, download_once
from ..checkpoints.dense import DENSE
from ..checkpoints.released import address_of, licence_of, released_name, released_place
from ..model_zoo import ModelInfo, read_models
from ..toolboxes import TOOLBOXES, require_toolbox
from ..version import __version__
from ..writing import write_whole
from .command_line import ToolParser, at_least, positive


class Measured(NamedTuple):
    """A score of the metafiles in a test.

    Attributes:
        key: Its name in the results of the toolbox's test.
        factor: From the toolbox's number to per cent.
        tolerance: Points between two implementations that we take for the same. Resizing, the
            decoder of JPEG and half precision move top-1 by up to 0.1; AP and mIoU of other
            versions of a toolbox by a little more.
    """

    key: str
    factor: float
    tolerance: float


SCORES = {
    'Top 1 Accuracy': Measured('accuracy/top1', 1, 0.1),
    'box AP': Measured('coco/bbox_mAP', 100, 0.2),
    'mask AP': Measured('coco/segm_mAP', 100, 0.2),
    'mIoU': Measured('mIoU', 1, 0.3),
}
# Images of the whole validation set, by the start of the data set's name.
WHOLE = dict(imagenet=50000, coco=5000, ade20k=2000, cityscapes=500, voc12aug=1449)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Verify a file. The exit status is 1 if the measured score is not the published one."""
    parser = ToolParser(__doc__, prog='python -m mmlaplace verify')
    parser.add_argument('name', help='of python -m mmlaplace list --weights, or a config')
    parser.add_argument(
        '--data',
        type=Path,
        required=True,
        help='class folders of the validation images, or the root of COCO, ADE20K and others',
    )
    parser.add_output('--out', suffixes=('.json',), help='default: verified_NAME.json')
    parser.add_argument('--device', default='cpu', help='cpu or cuda; default: cpu')
    parser.add_argument(
        '--batch-size', type=positive, default=32, help='default: 32; 1 of a detector'
    )
    parser.add_argument('--workers', type=lambda text: at_least(0, text), default=2)
    args = parser.parse_args(arguments)
    args.out = args.out or Path(f'verified_{args.name}.json')
    parser.check_output(args.out, args.force)
    with parser.refusing(ValueError, FileNotFoundError, DownloadError, ImportError):
        row = verify(args.name, args.data, args.device, args.batch_size, args.workers)
        write_whole(args.out, json.dumps(row, indent=2) + '\n')
    sys.stdout.write('\n'.join(sentences(row)) + f'\n{args.out} has all of it\n')
    return 1 if row['verdict'] == 'differs' else 0


def verify(
    name: str, data: Path, device: str = 'cpu', batch_size: int = 32, workers: int = 2
) -> Dict[str, Any]:
    """What a released file gives in the test of its config.

    Args:
        name: Of the weights, such as ``'cswin-tiny'``, or of a config.
        data: A folder with a folder of images for each class, in the order of ImageNet's; or the
            ``data_root`` of the config's data set.
        device: Where the model runs. Default: 'cpu'.
        batch_size: Images of a step of a classifier. Default: 32.
        workers: Processes that read images. Default: 2.

    Raises:
        ValueError: If there is no such name, no published score, or the file does not fit.
        DownloadError: If the file cannot be downloaded.
        FileNotFoundError: If the data is not there.
        ImportError: If the toolbox is not installed.
    """
    model, weights = find(name)
    published = dict(getattr(DENSE.get(weights), 'scores', {}) or model.metadata['Published'])
    wanted = {key: published[key] for key in TOOLBOXES[model.task].metrics if key in published}
    if not wanted:
        raise ValueError(f'the authors of {name} publish no score that a test could give')
    cfg = config_of(model, data, batch_size, workers)
    require_toolbox(cfg.default_scope)
    place = released_place(address_of(weights))
    file = download_once(place)
    importlib.import_module(f'{cfg.default_scope}.utils').register_all_modules(False)
    with tempfile.TemporaryDirectory() as folder:
        cfg.work_dir = folder
        runner = Runner.from_cfg(cfg)
        report = load_weights(runner.model, address_of(weights))
        runner.model.to(device)
        results = runner.test()
    images = len(runner.test_dataloader.dataset)
    measured = {key: results[SCORES[key].key] * SCORES[key].factor for key in wanted}
    return dict(
        name=weights,
        config=model.name,
        file=place,
        sha256=sha256(file.read_bytes()).hexdigest(),
        bytes=file.stat().st_size,
        licence=licence_of(weights),
        matched=report.sentence(len(report.matched) + len(report.missing)),
        data=data_set(model),
        images=images,
        published=wanted,
        measured={key: round(value, 2) for key, value in measured.items()},
        tolerance={key: SCORES[key].tolerance for key in wanted},
        verdict=verdict(wanted, measured, images == WHOLE[data_set(model)]),
        versions=dict(mmlaplace=__version__, torch=torch.__version__),
        device=device,
        date=date.today().isoformat(),
    )


def find(name: str) -> tuple:
    """The model of the zoo, and the name of its weights."""
    models = {model.name: model for model in read_models()}
    if name in DENSE:
        return models[DENSE[name].config or name], name
    weights = models[name].metadata.get('Published as', '') if name in models else ''
    weights = weights or released_name(address_of(name))
    if name in models:
        return models[name], weights
    for model in models.values():
        if model.metadata.get('Published as') == weights and model.task == 'classification':
            return model, weights
    raise ValueError(
        f'no config of the model zoo has the weights {weights!r}, so none says their test'
    )


def data_set(model: ModelInfo) -> str:
    """The name of the data set of a config, as in :data:`WHOLE`."""
    if model.task == 'classification':
        return 'imagenet'
    return model.name.rpartition('_')[-1].partition('-')[0]


def config_of(model: ModelInfo, data: Path, batch_size: int, workers: int) -> Config:
    """The config with the data of the user, and without what a test does not need."""
    if not data.is_dir():
        raise FileNotFoundError(f'there is no folder {data}; give the validation data by --data')
    cfg = Config.fromfile(model.config)
    loader = cfg.test_dataloader
    loader.update(num_workers=workers, persistent_workers=workers > 0)
    if model.task == 'classification':
        folders = [each for each in data.iterdir() if each.is_dir()]
        if len(folders) < 2:
            raise FileNotFoundError(
                f'{data} has {len(folders)} folders, and the validation images of ImageNet are in '
                '1,000, one for each class; docs/train_it_yourself.md says how they get there'
            )
        loader.batch_size = batch_size
        loader.dataset = dict(
            type='CustomDataset',
            data_root=str(data),
            pipeline=loader.dataset.pipeline,
        )
    else:
        before = loader.dataset.data_root
        loader.dataset.data_root = str(data)
        evaluator = cfg.test_evaluator
        if 'ann_file' in evaluator:
            evaluator.ann_file = str(data / Path(evaluator.ann_file).relative_to(before))
    cfg.model.backbone.init_cfg = None
    cfg.update(load_from=None, resume=False, first_checks=False)
    for hook in ('first_checks', 'visualization'):
        cfg.default_hooks.pop(hook, None)
    return cfg


def verdict(published: Dict[str, float], measured: Dict[str, float], whole: bool) -> str:
    """``'verified'``, ``'differs'``, or none for a part of the data."""
    if not whole:
        return 'none: not the whole validation set'
    near = all(abs(measured[key] - published[key]) <= SCORES[key].tolerance for key in published)
    return 'verified' if near else 'differs'


def sentences(row: Dict[str, Any]) -> list:
    """What a user reads."""
    lines = [
        f'{row["file"]}: {row["bytes"]:,} bytes, SHA-256 {row["sha256"][:16]}…',
        f'licence {row["licence"]}',
        row['matched'],
    ]
    for key, value in row['published'].items():
        lines.append(
            f'{key}: published {value}, measured {row["measured"][key]} of {row["images"]:,} '
            f'images, tolerance {row["tolerance"][key]}'
        )
    lines.append(f'verdict: {row["verdict"]}')
    return lines
