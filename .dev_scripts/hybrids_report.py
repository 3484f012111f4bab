"""The times, the table and the picture of study_hybrids.py."""

import math
import statistics
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from hybrids_tasks import BATCH, BLOCKS, HOST, MAIN, OPTIONS, OTHERS, PLAN, SEEDS, SIDE, STEPS
from marked_tables import markdown_table
from mmengine.registry import MODELS

from mmlaplace.analysis.measuring import describe_machine, interleave, model_job
from mmlaplace.commands.command_line import write_json
from mmlaplace.lab.figures import new_figure, save
from mmlaplace.lab.side_by_side.seed_differences import half_width, short
from mmlaplace.linearizing import linear_config, softmax_places

# Hosts that are timed, and the sides of their images.
TIMED: Dict[str, Tuple[dict, Tuple[int, ...]]] = {
    'small': (dict(HOST, patch_size=16), (512, 1024, 2048)),
    'DeiT-S': (dict(HOST, arch='small', patch_size=16), (512, 1024)),
}
IN_TABLE = (None, 0, 2)  # numbers of kept blocks
TITLES = {
    'textures': 'textures: top-1 (%)',
    'fashion': 'Fashion-MNIST: top-1 (%)',
    'segmentation': 'digits: mIoU (%)',
    'rendered': 'rendered rooms: R² (%)',
}


def time_all(sides: Sequence[int], path: Path) -> None:
    """Write the medians of the seconds of hosts of patches of 16, with softmax and hybrids."""
    device, found = torch.device('cpu'), dict(machine=describe_machine(torch.device('cpu')))
    for host, (cfg, own_sides) in TIMED.items():
        cells = [(MAIN, keep) for keep in (0, 1, 2, 4)]
        cells += [(name, 0) for name in OTHERS] if host == 'small' else []
        for side in sides or own_sides:
            whole = dict(cfg, img_size=side)
            softmax = MODELS.build(whole)
            models = {'softmax': softmax}
            for name, keep in cells:
                kept = list(softmax_places(softmax))[:keep]  # all blocks take the same time
                swapped = linear_config(whole, softmax, name, OPTIONS[name], kept)
                models[f'{name} {keep}'] = MODELS.build(swapped)
            image = torch.randn(1, 3, side, side)
            jobs = {name: model_job(model.eval(), image, False) for name, model in models.items()}
            runs = interleave(jobs, 7, device)
            seconds = {name: round(statistics.median(times), 4) for name, times in runs.items()}
            found.setdefault(host, {})[str(side)] = seconds
            print(host, side, seconds, flush=True)
            write_json(path, found)


def groups(results: Sequence[dict]) -> Dict[tuple, List[dict]]:
    """Runs of all seeds by task, attention, variant and number of kept blocks."""
    found: Dict[tuple, List[dict]] = {}
    for result in results:
        names = [result['settings'].get(n) for n in ('task', 'attention', 'variant', 'keep')]
        if 'score' in result:
            found.setdefault(tuple(names), []).append(result)
    return found


def mean_and_width(values: Sequence[float]) -> Tuple[float, float]:
    """The mean, and half the width of its 95 % interval, or NaN with one value."""
    return statistics.mean(values), half_width(list(values)) if len(values) > 1 else math.nan


def cell(runs: Sequence[dict]) -> str:
    """The means of both scores with their intervals, and the number of seeds if not three."""
    if not runs:
        return 'not run'
    texts = []
    for size in ('small', 'large'):
        mean, width = mean_and_width([run['score'][size] for run in runs])
        texts.append(f'{mean:.1f}' + f' ± {width:.1f}' * (len(runs) > 1))
    trunk = runs[0]['settings']['variant'] == 'softmax'
    seeds = f' ({len(runs)} seed{"s" * (len(runs) > 1)})' * (len(runs) != len(SEEDS) and not trunk)
    return '; '.join(texts) + seeds


def time_table(times: dict) -> str:
    """Seconds of softmax, and of the others in units of its time."""
    names = list(times['small'][min(times['small'])])
    lines = []
    of_sides = [(host, side) for host in TIMED for side in times.get(host, ())]
    for host, side in of_sides:
        seconds = times[host][side]
        shares = [f'{seconds[n] / seconds["softmax"]:.2f}' if n in seconds else '' for n in names]
        lines.append([f'{host}, {side}²', f'{seconds["softmax"]:.2f} s', *shares[1:]])
    titles = [f'{short(name)} kept' if name != 'softmax' else name for name in names]
    how = (
        f'Time of an image on one thread of {times["machine"]["CPU"]}, and shares of it. *small* '
        'is the ViT above with patches of 16.'
    )
    return f'{fill(how, 120)}\n\n{markdown_table(["", *titles], lines)}'


def table(results: Sequence[dict], times: Optional[dict] = None) -> str:
    """Scores at the size of training and at four times the tokens, times, and what was not run."""
    found = groups(results)
    tasks = [task for task in TITLES if (task, None, 'softmax', None) in found]
    lines, missing = [], [TITLES[task].partition(':')[0] for task in TITLES if task not in tasks]
    for names in ((None, 'softmax', None), *(names for part in PLAN for names in part)):
        attention, variant, keep = names
        title = 'softmax' if attention is None else f'{short(attention)}, {keep} kept'
        title += f', {variant}' * (variant not in ('softmax', 'harm'))
        runs = [found.get((task, *names), []) for task in tasks]
        if not any(runs):
            missing.append(title)
        elif keep in IN_TABLE or variant != 'harm':  # the picture has them all
            lines.append([title, *(cell(one) for one in runs)])
    how = (
        f'One ViT of {BLOCKS} blocks learned each task. Other attentions imitated it for '
        f'{sum(STEPS.values())} steps of {BATCH} images, from copied weights but those called new. '
        f'Scores are at {SIDE}²; at {2 * SIDE}², with 95 % intervals of {len(SEEDS)} seeds of the '
        'imitation. Softmax was trained once.'
    )
    missing += ['times'] * (times is None)
    rest = f'\n\nNot run: {"; ".join(missing)}.' * bool(missing)
    rest = f'\n\n{time_table(times)}{rest}' if times else rest
    scores = markdown_table(['', *(TITLES[task] for task in tasks)], lines)
    return f'{fill(how, 120)}\n\n{scores}{rest}'


def share_of_time(times: dict, attention: str, keep: int) -> float:
    """Time of a small hybrid at the largest side, in units of softmax's, by its blocks."""
    seconds = times['small'][max(times['small'], key=int)]
    linear = seconds[f'{attention} 0'] / seconds['softmax']
    return seconds.get(f'{attention} {keep}', 0) / seconds['softmax'] or (
        linear + (1 - linear) * keep / BLOCKS
    )


def draw(results: Sequence[dict], times: Optional[dict], path: Path) -> None:
    """Scores over time, or over the number of kept blocks where nothing was timed."""
    found = groups(results)
    tasks = [task for task in TITLES if (task, None, 'softmax', None) in found]
    figure, axes = new_figure(2, len(tasks), (2.75 * len(tasks), 5.2), sharex=True, squeeze=False)
    for (row, size), (column, task) in product(enumerate(('small', 'large')), enumerate(tasks)):
        panel = axes[row, column]
        (softmax,) = found[task, None, 'softmax', None]
        panel.axhline(softmax['score'][size], color='black', lw=0.8, ls=':', label='softmax')
        for colour, attention in enumerate(OPTIONS):
            points = []
            for keep in range(BLOCKS):
                runs = found.get((task, attention, 'harm', keep))
                if runs:
                    # Side by side, or the intervals would hide each other.
                    x = share_of_time(times, attention, keep) if times else keep + colour / 12
                    points.append((x, *mean_and_width([run['score'][size] for run in runs])))
            if points:
                x, mean, width = zip(*points)
                panel.errorbar(
                    x, mean, width, fmt='o-', ms=4, lw=1, capsize=2, color=f'C{colour}',
                    label=short(attention),
                )  # fmt: skip
        panel.grid(alpha=0.3)
        if not times:
            panel.set_xticks(range(5))
        if row == 0:
            panel.set_title(TITLES[task], fontsize=10)
        if column == 0:
            panel.set_ylabel('64²' if size == 'small' else '128², four times the tokens')
    side = max(times['small'], key=int) if times else ''
    figure.supxlabel(
        f"time at {side}² / softmax model's" if times else 'blocks that keep softmax, of six',
        fontsize=10,
    )
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc='outside upper center', ncols=5,
                  fontsize=9)  # fmt: skip
    save(figure, path, dpi=100)
