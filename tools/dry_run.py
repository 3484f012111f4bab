"""Run configs for a few training iterations and one validation, on stand-in data.

A config runs as it is written: its model, pipelines, augmentation, optimiser, hooks and evaluators.
The dry run changes the data (a few images in the layouts of ImageNet, COCO, ADE20K, Cityscapes and
VOC; other data, such as your own, stay), the number of iterations (two) and the batch (two images;
UPerNet needs two). It downloads no weights, and loads images without worker processes. A strategy
for several GPUs (FSDP, DeepSpeed) is left out, and the table says so. Each config has a process of
its own. A config that has passed is not repeated until it changes, or other --iterations or another
--batch-size is asked for.

With --random-images it runs the model and the optimiser alone, for one training step and one
prediction, and needs no data. That takes seconds.

Examples:
  python tools/dry_run.py my_config.py --random-images --image-size 192 256
  python tools/dry_run.py configs/detection/soft/retinanet_softpp-tiny_fpn_1x_coco.py
  python tools/dry_run.py my_config.py --cfg-options model.backbone.with_cp=True
  python tools/dry_run.py --tasks segmentation
  python tools/dry_run.py --tasks detection --iterations 1 --batch-size 1  # takes less time
  python tools/dry_run.py --tasks classification detection segmentation      # hours on a CPU
"""

import argparse
import hashlib
import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Set

from filelock import FileLock
from mmengine.config import Config, DictAction
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mmlaplace.analysis.networks import image_size
from mmlaplace.commands.command_line import (
    ToolParser,
    positive,
    read_config,
    read_json,
    write_json,
)
from mmlaplace.commands.random_images import train_and_predict
from mmlaplace.commands.refusals import first_checks
from mmlaplace.commands.script_runs import import_first, run_script
from mmlaplace.engine.first_checks import FirstCheckError, check_config, check_maps, is_on
from mmlaplace.writing import write_whole

ROOT = Path(__file__).resolve().parents[1]
TASKS = ('classification', 'detection', 'segmentation')
# In the folder of a run, the sentence that ended it.
REFUSED = 'refused.txt'
# In data/, of make_stand_in_datasets.py.
LAYOUTS = ('imagenet', 'coco', 'ade', 'cityscapes', 'VOCdevkit')


def full_size_configs(task: str) -> List[Path]:
    """All configs of a task but the bases and those of small data."""
    folders = [path for path in (ROOT / 'configs' / task).iterdir() if path.name != '_base_']
    files = sorted(path for folder in folders for path in folder.glob('*.py'))
    return [path for path in files if not re.search('mini|fashion', path.stem)]


def on_stand_ins(value: Any, data: Path) -> Any:
    """A config's values with each path in data/ moved to the stand-in data, if its folder is there.

    So a config of the user's own data, or of mini data, runs on these.
    """
    if isinstance(value, dict):
        return {key: on_stand_ins(inner, data) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_stand_ins(inner, data) for inner in value)
    if isinstance(value, str) and value.startswith('data/'):
        inner = value[len('data/') :]
        return f'{data}/{inner}' if (data / inner.split('/')[0]).is_dir() else value
    return value


def stand_ins_of(cfg: Config) -> Set[str]:
    """The stand-ins that a config reads. The user's own data need none."""
    read = {name: value for name, value in cfg.to_dict().items() if isinstance(value, dict)}
    return set(re.findall(rf"'data/({'|'.join(LAYOUTS)})\b", repr(read)))


def without_thresholds(value: Any) -> Any:
    """A detector's test_cfg that keeps boxes of any score: untrained heads have none above 0.05."""
    if isinstance(value, dict):
        return {k: 0.0 if k == 'score_thr' else without_thresholds(v) for k, v in value.items()}
    return value


def shorten(
    cfg: Config, data: Path, work_dir: Path, iterations: int = 2, batch_size: int = 2
) -> Config:
    """The config for a dry run. Everything that is not named here stays."""
    cfg = Config(on_stand_ins(cfg.to_dict(), data))
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=iterations, val_interval=iterations)
    # Also where a config has one image a GPU: SyncBN would add the images of other GPUs.
    cfg.train_dataloader.batch_size = batch_size
    for loader in (cfg.val_dataloader, cfg.test_dataloader):
        loader.batch_size = min(loader.batch_size, batch_size)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
        for unusual in ('prefetch_factor', 'pin_memory'):
            loader.pop(unusual, None)
    init_cfg = cfg.model.backbone.get('init_cfg')
    if isinstance(init_cfg, dict) and '://' in str(init_cfg.get('checkpoint')):
        cfg.model.backbone.init_cfg = None
    if cfg.model.get('test_cfg'):
        cfg.model.test_cfg = without_thresholds(cfg.model.test_cfg.to_dict())
    # A strategy needs GPUs. The Runner knows none, so only what goes with one alone is changed.
    if cfg.optim_wrapper.get('type') == 'DeepSpeedOptimWrapper':
        cfg.optim_wrapper.type = 'OptimWrapper'
    cfg.default_hooks.logger.update(interval=1)
    # Weights of a huge model are a gigabyte, and nothing was learned.
    cfg.default_hooks.checkpoint.update(interval=10**9, save_last=False, save_best=None)
    cfg.work_dir = str(work_dir)
    cfg.launcher = 'none'
    cfg.load_from = None
    return cfg


def run_here(cfg: Config, data: Path, work_dir: Path, length: Dict[str, Any]) -> None:
    """Train and validate in this process, and write what was seen, or the sentence of a refusal."""
    start = time.perf_counter()
    try:
        if length['random_images']:
            shape = tuple(length['image_size'] or image_size(cfg))
            with first_checks(cfg, ()):
                if is_on(cfg):
                    check_maps(cfg)
                seen = dict(train_and_predict(cfg, shape, length['batch_size']), metrics={})
        else:
            short = shorten(cfg, data, work_dir, length['iterations'], length['batch_size'])
            with first_checks(short, ('train', 'val')):
                seen = train_and_validate(short)
    except SystemExit as refusal:
        write_whole(work_dir / REFUSED, str(refusal.code))
        raise
    write_json(
        work_dir / 'passed.json',
        dict(
            seconds=time.perf_counter() - start,
            MB=peak_megabytes(),
            **length,
            **seen,
            left_out=cfg.strategy.type if 'strategy' in cfg else '',
        ),
    )


def peak_megabytes() -> Optional[float]:
    """The largest memory of this process so far. None on Windows, which has no such count."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def train_and_validate(cfg: Config) -> Dict[str, Any]:
    """The loss and the metrics of a run that is short."""
    from mmengine.model import revert_sync_batchnorm
    from mmengine.runner import Runner

    runner = Runner.from_cfg(cfg)
    runner.model = revert_sync_batchnorm(runner.model)  # SyncBN needs several processes
    runner.train()
    scalars = runner.message_hub.log_scalars
    losses = [scalars[name].current() for name in scalars if name.startswith('train/loss')]
    if not losses or not all(math.isfinite(loss) for loss in losses):
        raise RuntimeError(f'the losses are {losses}; they must be finite')
    metrics = {
        name[len('val/') :]: scalars[name].current()
        for name in scalars
        if name.startswith('val/') and 'time' not in name
    }
    if not metrics:
        raise RuntimeError('the validation wrote no metric')
    return dict(loss=losses[0], metrics=metrics)


def name_of(config: Path) -> str:
    """Its path in configs/, or all of it elsewhere."""
    folder = ROOT / 'configs'
    return (config.relative_to(folder) if folder in config.parents else config).as_posix()


def fingerprint(cfg: Config) -> str:
    """Of all that a config says, its bases included."""
    return hashlib.sha256(cfg.pretty_text.encode()).hexdigest()[:16]


def run(
    config: Path,
    mark: str,
    data: Path,
    work_dir: Path,
    length: Dict[str, Any],
    options: Sequence[str] = (),
) -> dict:
    """Run a config in a process of its own; what it found, or why it failed.

    That is the sentence of a refusal, or else the end of its log.
    """
    folder = work_dir / config.stem
    row = dict(config=name_of(config), fingerprint=mark)
    passed, refused = folder / 'passed.json', folder / REFUSED
    for old in (passed, refused):
        old.unlink(missing_ok=True)
    arguments = [str(config), '--here', '--data-root', str(data), '--work-dir', str(folder)]
    for name, value in length.items():
        if value:
            values = [] if value is True else value if isinstance(value, list) else [value]
            arguments += [f'--{name.replace("_", "-")}', *map(str, values)]
    if options:
        arguments += ['--cfg-options', *options]
    status, end = run_script(Path(__file__), arguments, folder / 'log.txt')
    if status == 0:
        return dict(row, passed=True, **json.loads(passed.read_bytes()))
    if refused.is_file():
        end = refused.read_text(encoding='utf-8')
    return dict(row, passed=False, status=status, end=end)


def parsed(words: Sequence[str]) -> Dict[str, Any]:
    """The options of a config in words KEY=VALUE, as mmengine reads them."""
    if not words:
        return {}
    found = argparse.Namespace()
    DictAction(['--cfg-options'], 'options', nargs='+')(argparse.ArgumentParser(), found, words)
    return found.options


def print_table(rows: List[dict]) -> None:
    table = Table(box=box.SIMPLE)
    for header in ('config', 'seconds', 'peak MB', 'loss', 'metrics'):
        table.add_column(header, overflow='fold')
    for row in rows:
        if row['passed']:
            metrics = ', '.join(f'{name} {value:.3g}' for name, value in row['metrics'].items())
            megabytes = '-' if row['MB'] is None else f'{row["MB"]:.0f}'
            cells = [f'{row["seconds"]:.0f}', megabytes, f'{row["loss"]:.3g}', metrics]
        else:
            cells = ['-', '-', '-', f'FAILED with status {row["status"]}']
        left_out = f' (without {row["left_out"]})' if row.get('left_out') else ''
        table.add_row(row['config'] + left_out, *cells)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def take_former_size(args: argparse.Namespace) -> None:
    """Take ``--random-images H W``, as the size was given before, for ``--image-size H W``."""
    former = args.random_images
    args.random_images = former is not None
    if former:
        args.image_size = args.image_size or [former[0], former[-1]]


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('configs', nargs='*', type=Path)
    parser.add_argument('--tasks', nargs='+', choices=TASKS, default=[], help='all of these')
    parser.add_argument('--data-root', type=Path, default=Path('data/stand_in'))
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/dry_run'))
    parser.add_argument('--iterations', type=positive, default=2, help='of training (default: 2)')
    parser.add_argument('--batch-size', type=positive, default=2, help='of training (default: 2)')
    parser.add_argument(
        '--random-images', nargs='*', type=positive, metavar='', help='instead of any data'
    )
    parser.add_image_size(
        nargs=2,
        type=positive,
        metavar=('H', 'W'),
        help="of the random images; default: the config's",
    )
    parser.add_argument(
        '--cfg-options', nargs='+', default=[], metavar='KEY=VALUE', help='of all configs'
    )
    parser.add_argument('--here', action='store_true', help='one config, in this process')
    args = parser.parse_args()
    take_former_size(args)
    if args.image_size and not args.random_images:
        parser.error('--image-size is for --random-images; the config sets the size of its data')
    configs = [config.resolve() for config in args.configs]
    configs += [config for task in args.tasks for config in full_size_configs(task)]
    length = dict(
        iterations=args.iterations,
        batch_size=args.batch_size,
        random_images=args.random_images or None,
        image_size=args.image_size,
    )
    if not configs:
        parser.error(f'name configs, or tasks of {TASKS} by --tasks')
    missing = [str(config) for config in configs if not config.is_file()]
    if missing:
        parser.error(f'there are no files {missing}')
    data = args.data_root.resolve()
    options = parsed(args.cfg_options)
    cfgs = [read_config(str(config), options=options) for config in configs]
    for config, cfg in zip(configs, cfgs):
        with parser.refusing(FirstCheckError, start=f'{name_of(config)}: '):
            if is_on(cfg):
                check_config(cfg)
    for name in sorted(set().union(*map(stand_ins_of, cfgs))):
        own = data.is_dir() and Path('data', name).is_dir()  # the user's, which then serve
        if not ((data / name).is_dir() or own or args.random_images):
            parser.error(
                f'{data / name} is missing; python tools/dataset_converters/'
                f'make_stand_in_datasets.py --out {args.data_root} makes it'
            )
    if args.here:
        return run_here(cfgs[0], data, args.work_dir, length)
    results = args.work_dir / 'results.json'
    known = read_json(results) if results.is_file() else {}
    toolboxes = {cfg.default_scope for cfg in cfgs if cfg.get('default_scope')}
    import_first(*(f'{toolbox}.models' for toolbox in sorted(toolboxes)), 'mmlaplace.models')
    rows = []
    for config, cfg in track(list(zip(configs, cfgs)), 'configs', transient=True):
        old, mark = known.get(name_of(config)), fingerprint(cfg)
        asked = dict(passed=True, fingerprint=mark, **length)
        if old is None or asked != {name: old.get(name) for name in asked}:
            print(f'{name_of(config)}: runs', flush=True)
            old = run(config, mark, data, args.work_dir, length, args.cfg_options)
            print(f'{name_of(config)}: {"passed" if old["passed"] else "failed"}', flush=True)
            with FileLock(results.with_suffix('.lock')):  # another call may write rows meanwhile
                known = {
                    **(read_json(results) if results.is_file() else known),
                    name_of(config): old,
                }
                write_json(results, known)
        rows.append(old)
    print_table(rows)
    failed = [row for row in rows if not row['passed']]
    for row in failed:
        print(f'\n{row["config"]}:\n{row["end"]}')
    if failed:
        sys.exit(f'{parser.prog}: error: {len(failed)} of {len(rows)} configs failed')
    print(f'{len(rows)} of {len(rows)} configs passed; {results} has their losses and scores')


if __name__ == '__main__':
    main()
