"""Train attentions on the same host and mini data, several seeds each, and tabulate accuracy.

Each model first learns single digits (data/mini/classification, 48 x 48 pixels), then crowds of
digits of one class (data/mini/crowds), also at 48 x 48. It is tested on held-out single digits, and
on held-out crowds at 48 x 48 and in wider views of the same scenes, 1.5 and 2 times as large, where
the digits keep their size and only the number of tokens grows. Runs that have finished are kept in
the work directory and not repeated.

Examples:
  python tools/dataset_converters/make_mini_datasets.py --tasks classification crowds
  python tools/analysis_tools/compare_attentions.py      # all variants, seeds 0 1 2
  python tools/analysis_tools/compare_attentions.py --variants laplacian softmax --seeds 3 4
"""

import json
import statistics
from pathlib import Path
from typing import Dict

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.runner import Runner

from mmlaplace.model_zoo import build_model
from mmlaplace.utils.command_line import ToolParser, load_or_exit

CONFIGS = Path(__file__).resolve().parents[2] / 'configs/classification/laplacianformer'
CROWD_EPOCHS = 6
# Column: data set and folder to test on, after training on that data set.
COLUMNS = {
    'single digits, 48²': ('classification', 'val'),
    'crowds, 48² (1×)': ('crowds', 'val'),
    'crowds, 72² (1.5×)': ('crowds', 'val_72'),
    'crowds, 96² (2×)': ('crowds', 'val_96'),
}
# Name in the table: config, and what differs from it.
VARIANTS = {
    'laplacian': ('laplacianformer-micro_1xb32_mini.py', {}),
    'laplacian-literal': (
        'laplacianformer-micro_1xb32_mini.py',
        {'model.backbone.attn_cfg.whitening': 'literal'},
    ),
    'gaussian': ('laplacianformer-micro-gaussian_1xb32_mini.py', {}),
    'softmax': ('laplacianformer-micro-softmax_1xb32_mini.py', {}),
}


def train(cfg: Config, work_dir: Path) -> str:
    """Train unless that was done before; the last checkpoint."""
    checkpoint = work_dir / f'epoch_{cfg.train_cfg.max_epochs}.pth'
    if not checkpoint.is_file():
        cfg.work_dir = str(work_dir)
        Runner.from_cfg(cfg).train()
    load_or_exit(build_model(cfg), str(checkpoint), min_matched=1)  # the Runner would run its code
    return str(checkpoint)


def run(variant: str, seed: int, work_dir: Path, data_root: Path) -> Dict[str, float]:
    """Train and test one model: top-1 by column."""
    name, options = VARIANTS[variant]
    top1, checkpoint = {}, None
    for data in ('classification', 'crowds'):
        cfg = Config.fromfile(CONFIGS / name)
        cfg.merge_from_dict(options)
        cfg.randomness = dict(seed=seed)
        for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
            loader.dataset.data_root = str(data_root / data)
        if data == 'crowds':
            # From scratch the crowds' loss stays at chance for many epochs.
            cfg.load_from = checkpoint
            cfg.train_cfg.max_epochs = cfg.param_scheduler[-1]['end'] = CROWD_EPOCHS
            cfg.train_cfg.val_interval = CROWD_EPOCHS
        cfg.experiment_name = f'{variant}_{seed}_{data}'
        checkpoint = train(cfg, work_dir / data)
        for column, (tested, folder) in COLUMNS.items():
            if tested == data:
                cfg.work_dir = str(work_dir / data / folder)
                cfg.load_from = checkpoint
                cfg.test_dataloader.dataset.data_prefix = folder
                cfg.experiment_name = f'{variant}_{seed}_{data}_{folder}'
                top1[column] = Runner.from_cfg(cfg).test()['accuracy/top1']
    return top1


def table(results: Dict[str, Dict[int, Dict[str, float]]]) -> str:
    """Markdown: mean, spread and single values over seeds, per variant and column."""
    lines = [
        '| attention | ' + ' | '.join(COLUMNS) + ' |',
        '|---|' + '---|' * len(COLUMNS),
    ]
    for variant, by_seed in results.items():
        cells = []
        for column in COLUMNS:
            values = [top1[column] for top1 in by_seed.values()]
            spread = f' ± {statistics.stdev(values):.1f}' if len(values) > 1 else ''
            single = ', '.join(f'{value:.1f}' for value in values)
            cells.append(f'{statistics.mean(values):.1f}{spread} ({single})')
        lines.append(f'| {variant} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--variants', nargs='+', choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--data-root', type=Path, default=Path('data/mini'))
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/compare_attentions'))
    args = parser.parse_args()
    results = {}
    for seed in args.seeds:
        for variant in args.variants:
            work_dir = args.work_dir / f'{variant}_seed{seed}'
            finished = work_dir / 'top1.json'
            if not finished.is_file():
                top1 = run(variant, seed, work_dir, args.data_root)
                finished.write_text(json.dumps(top1))
            results.setdefault(variant, {})[seed] = json.loads(finished.read_text())
    written = args.work_dir / 'results.json'
    written.write_text(json.dumps(results, indent=2))
    MMLogger.get_current_instance().info(f'wrote {written}')
    print(table(results))


if __name__ == '__main__':
    main()
