"""Train attentions on the same host and mini data, several seeds each, and tabulate accuracy.

Every model is trained at 48 x 48 pixels and tested there and on wider views of the same scenes, 1.5
and 2 times as large, where the digits keep their size and only the number of tokens grows. Runs that
have finished are kept in the work directory and not repeated.

Examples:
  python tools/compare_mini.py                                        # all variants, seeds 0 1 2
  python tools/compare_mini.py --variants laplacian --seeds 3 4 --max-epochs 5
"""

import argparse
import json
import statistics
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.runner import Runner

CONFIGS = Path(__file__).resolve().parent.parent / 'configs/classification/laplacianformer'
FOLDERS = {'val': '48² (1×)', 'val_72': '72² (1.5×)', 'val_96': '96² (2×)'}
# Name in the table: config, and what differs from it.
VARIANTS = {
    'laplacian': ('laplacianformer-micro_1xb32_mini.py', {}),
    'laplacian-literal': (
        'laplacianformer-micro_1xb32_mini.py',
        {'model.backbone.attn_cfg.scale_form': 'literal'},
    ),
    'gaussian': ('laplacianformer-micro-gaussian_1xb32_mini.py', {}),
    'softmax': ('laplacianformer-micro-softmax_1xb32_mini.py', {}),
}


def run(variant: str, seed: int, work_dir: Path, max_epochs: int, data_root: str) -> dict:
    """Train and test one model: top-1 by test folder."""
    name, options = VARIANTS[variant]
    cfg = Config.fromfile(CONFIGS / name)
    cfg.merge_from_dict(options)
    cfg.work_dir = str(work_dir)
    cfg.randomness = dict(seed=seed)
    if max_epochs:
        cfg.train_cfg.max_epochs = max_epochs
        cfg.param_scheduler[-1]['end'] = max_epochs
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset.data_root = data_root
    cfg.experiment_name = f'{variant}_{seed}_train'
    Runner.from_cfg(cfg).train()

    cfg.load_from = str(work_dir / f'epoch_{cfg.train_cfg.max_epochs}.pth')
    result = {}
    for folder in FOLDERS:
        cfg.test_dataloader.dataset.data_prefix = folder
        cfg.experiment_name = f'{variant}_{seed}_{folder}'
        result[folder] = Runner.from_cfg(cfg).test()['accuracy/top1']
    return result


def table(results: dict) -> str:
    """Markdown: mean and spread over seeds per variant and test size."""
    lines = [
        '| attention | ' + ' | '.join(FOLDERS.values()) + ' | seeds |',
        '|---|' + '---|' * (len(FOLDERS) + 1),
    ]
    for variant, by_seed in results.items():
        cells = []
        for folder in FOLDERS:
            values = [result[folder] for result in by_seed.values()]
            spread = f' ± {statistics.stdev(values):.1f}' if len(values) > 1 else ''
            single = ', '.join(f'{value:.1f}' for value in values)
            cells.append(f'{statistics.mean(values):.1f}{spread} ({single})')
        lines.append(f'| {variant} | ' + ' | '.join(cells) + f' | {len(by_seed)} |')
    return '\n'.join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--variants', nargs='+', choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument(
        '--max-epochs', type=int, default=0, help="default: the configs' own"
    )
    parser.add_argument('--data-root', default='data/mini/classification')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/compare_mini'))
    args = parser.parse_args()
    results = {}
    for seed in args.seeds:
        for variant in args.variants:
            work_dir = args.work_dir / f'{variant}_seed{seed}'
            finished = work_dir / 'top1.json'
            if not finished.is_file():
                top1 = run(variant, seed, work_dir, args.max_epochs, args.data_root)
                finished.write_text(json.dumps(top1))
            results.setdefault(variant, {})[seed] = json.loads(finished.read_text())
    written = args.work_dir / 'results.json'
    written.write_text(json.dumps(results, indent=2))
    MMLogger.get_current_instance().info(f'wrote {written}')
    print(table(results))


if __name__ == '__main__':
    main()
