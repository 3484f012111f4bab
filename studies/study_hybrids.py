"""What hybrids keep and cost: docs/logs/hybrids.jsonl, hybrids_time.json and images/hybrids.png.

A ViT of six blocks is trained for each task. Then other attentions take the place of softmax in all
blocks but a few. A finished run is not repeated, and a killed call goes on. Tasks whose data is
missing are left out.

Examples:
  python tools/dataset_converters/make_mini_datasets.py --tasks textures segmentation rendered
  python studies/study_hybrids.py           # all runs that the log lacks
  python studies/study_hybrids.py --time    # about five minutes on a machine without load
  python studies/study_hybrids.py --draw    # the picture, and the table of the page
"""

import statistics
from functools import partial
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import Any, Dict, List, Sequence, Tuple

import torch
from hybrids.study import (
    BATCH,
    BLOCKS,
    HOST,
    MAIN,
    OPTIONS,
    OTHERS,
    PLAN,
    SEEDS,
    SIDE,
    STEPS,
    Study,
    linear_cfg,
)
from mmengine.registry import MODELS

from mmlaplace.analysis.measuring import describe_machine, interleave, model_job
from mmlaplace.commands.command_line import ToolParser, read_json, write_json
from mmlaplace.lab.figures import new_figure, save
from mmlaplace.lab.probes.results import by_key, read_results
from mmlaplace.lab.side_by_side.seed_differences import half_width, short
from mmlaplace.linearizing import linear_config, softmax_places
from mmlaplace.writing import markdown_table, with_tables, write_whole

ROOT = Path(__file__).resolve().parents[1]
LOG, TIMES = ROOT / 'docs/logs/hybrids.jsonl', ROOT / 'docs/logs/hybrids_time.json'
PAGE, PICTURE = ROOT / 'docs/linearize.md', ROOT / 'docs/images/hybrids.png'
# Hosts that are timed, and the sides of their images.
TIMED: Dict[str, Tuple[dict, Tuple[int, ...]]] = {
    'small': (dict(HOST, patch_size=16), (512, 1024, 2048)),
    'DeiT-S': (dict(HOST, arch='small', patch_size=16), (512, 1024)),
}
TITLES = {
    'textures': 'textures: top-1 (%)',
    'fashion': 'Fashion-MNIST: top-1 (%)',
    'segmentation': 'digits: mIoU (%)',
    'rendered': 'rendered rooms: R² (%)',
}


def time_all(path: Path) -> None:
    """Write the medians of the seconds of hosts of patches of 16, with softmax and hybrids."""
    device = torch.device('cpu')
    found = dict(machine=describe_machine(device))
    for host, (cfg, sides) in TIMED.items():
        cells = [(MAIN, keep) for keep in (0, 1, 2, 4)]
        cells += [(name, 0) for name in OTHERS] if host == 'small' else []
        for side in sides:
            whole = dict(cfg, img_size=side)
            models = {'softmax': MODELS.build(whole)}
            places = list(softmax_places(models['softmax']))
            for name, keep in cells:  # it matters not which blocks stay: all take the same time
                swapped = linear_config(
                    whole,
                    models['softmax'],
                    dict.fromkeys(places, linear_cfg(name)),
                    keep=places[:keep],
                )
                models[f'{name} {keep}'] = MODELS.build(swapped)
            image = torch.randn(1, 3, side, side)
            jobs = {name: model_job(model.eval(), image, False) for name, model in models.items()}
            runs = interleave(jobs, 7, device)
            seconds = {name: round(statistics.median(times), 4) for name, times in runs.items()}
            found.setdefault(host, {})[str(side)] = seconds
            print(host, side, seconds, flush=True)
            write_json(path, found)


def groups(results: Sequence[dict]) -> Dict[tuple, List[dict]]:
    """The scores of all seeds by task, attention, variant and number of kept blocks."""
    found: Dict[tuple, List[dict]] = {}
    for result in results:
        names = (result['settings'].get(n) for n in ('task', 'attention', 'variant', 'keep'))
        if 'score' in result:
            found.setdefault(tuple(names), []).append(result['score'])
    return found


def mean_and_width(scores: Sequence[dict], size: str) -> Tuple[float, float]:
    """The mean, and half the width of its 95 % interval, or NaN with one value."""
    values = [score[size] for score in scores]
    return statistics.mean(values), half_width(values) if len(values) > 1 else float('nan')


def cell(scores: Sequence[dict], seeds: int) -> str:
    """The means of both scores with their intervals, and the number of seeds if some lack."""
    if not scores:
        return 'not run'
    pairs = [mean_and_width(scores, size) for size in ('small', 'large')]
    texts = [f'{mean:.1f}' + f' ± {width:.1f}' * (len(scores) > 1) for mean, width in pairs]
    return '; '.join(texts) + f' ({len(scores)} of {seeds} seeds)' * (len(scores) != seeds)


def time_table(times: dict) -> str:
    """Seconds of softmax, and of the others in units of its time."""
    names = list(times['small'][min(times['small'])])
    lines = []
    for host, side in ((one, side) for one in TIMED for side in times.get(one, ())):
        seconds = times[host][side]
        shares = [f'{seconds[n] / seconds["softmax"]:.2f}' if n in seconds else '' for n in names]
        lines.append([f'{host}, {side}²', f'{seconds["softmax"]:.2f} s', *shares[1:]])
    titles = [f'{short(name)} kept' if name != 'softmax' else name for name in names]
    how = (
        f'Time of an image on one thread of {times["machine"]["CPU"]}, and shares of it. *small* '
        'is the ViT above with patches of 16. Neither has a class token.'
    )
    return f'{fill(how, 120)}\n\n{markdown_table(["", *titles], lines)}'


def table(results: Sequence[dict], times: dict) -> str:
    """Scores at the size of training and at four times the tokens, and times."""
    found, rows = groups(results), []
    for attention, variant, keep in (
        (None, 'softmax', None),
        *(row for part in PLAN for row in part),
    ):
        if variant != 'harm' or keep in (0, 2):  # the picture has them all
            title = f'{short(attention)}, {keep} kept' if attention else variant
            title += f', {variant}' * (variant not in ('softmax', 'harm'))
            seeds = len(SEEDS) if attention else 1
            cells = (found.get((task, attention, variant, keep), ()) for task in TITLES)
            rows.append([title, *(cell(scores, seeds) for scores in cells)])
    how = (
        f'One ViT of {BLOCKS} blocks learned each task. Other attentions imitated it for '
        f'{sum(STEPS.values())} steps of {BATCH} images, from copied weights but those called new. '
        f'Scores are at {SIDE}²; at {2 * SIDE}², with 95 % intervals of {len(SEEDS)} seeds of the '
        'imitation. Softmax was trained once.'
    )
    scores = markdown_table(['', *TITLES.values()], rows)
    return f'{fill(how, 120)}\n\n{scores}\n\n{time_table(times)}'


def share_of_time(times: dict, attention: str, keep: int) -> float:
    """Time of a small hybrid at the largest side, in units of softmax's, by its blocks."""
    seconds = times['small'][max(times['small'], key=int)]
    linear = seconds[f'{attention} 0'] / seconds['softmax']
    return seconds.get(f'{attention} {keep}', 0) / seconds['softmax'] or (
        linear + (1 - linear) * keep / BLOCKS
    )


def plot(panel: Any, points: Sequence[tuple], colour: str, label: str, line: str = '-') -> None:
    """Draw points of a time, a mean and half the width of its interval, if there are any."""
    if points:
        style = dict(fmt=f'o{line}', ms=4, lw=1, capsize=2)
        panel.errorbar(*zip(*points), color=colour, label=label, **style)


def draw(results: Sequence[dict], times: dict, path: Path) -> None:
    """Scores over time."""
    found = groups(results)
    tasks = [task for task in TITLES if (task, None, 'softmax', None) in found]
    figure, axes = new_figure(2, len(tasks), (2.75 * len(tasks), 5.2), sharex=True, squeeze=False)
    for (row, size), (column, task) in product(enumerate(('small', 'large')), enumerate(tasks)):
        panel = axes[row, column]
        (softmax,) = found[task, None, 'softmax', None]
        panel.axhline(softmax[size], color='black', lw=0.8, ls=':', label='softmax')
        for attention, colour in zip(OPTIONS, ('C0', 'C1', 'C2', 'C3', 'C4')):
            points = [
                (share_of_time(times, attention, keep), *mean_and_width(scores, size))
                for keep in range(BLOCKS)
                if (scores := found.get((task, attention, 'harm', keep)))
            ]
            plot(panel, points, colour, short(attention))
        panel.grid(alpha=0.3)
        if row == 0:
            panel.set_title(TITLES[task], fontsize=10)
        if column == 0:
            panel.set_ylabel('64²' if size == 'small' else '128², four times the tokens')
    side = max(times['small'], key=int)
    figure.supxlabel(f"time at {side}² / softmax model's", fontsize=10)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc='outside upper center', ncols=5, fontsize=9
    )
    save(figure, path, dpi=100)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--tasks', nargs='+', choices=list(TITLES), default=list(TITLES))
    parser.add_argument('--data-root', type=Path, default=Path('data/mini'))
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/hybrids'))
    parser.add_argument('--draw', action='store_true', help='the picture, and the table')
    parser.add_argument('--time', action='store_true', help='measure the times')
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.time:
        time_all(TIMES)
    elif args.draw:
        results, times = list(by_key(read_results(LOG)).values()), read_json(TIMES)
        draw(results, times, PICTURE)
        tables = with_tables(PAGE.read_text(), 'hybrids', lambda name: table(results, times))
        write_whole(PAGE, tables)
    else:
        found = [task for task in args.tasks if (args.data_root / task).is_dir()]
        for task in set(args.tasks) - set(found):
            print(f'{args.data_root / task} is missing, so this task is left out')
        shown = partial(print, flush=True)
        Study(LOG, args.data_root, args.work_dir, shown).run_all(found)


if __name__ == '__main__':
    main()
