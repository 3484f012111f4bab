"""The tables of options on Fashion-MNIST in docs/attention_comparison.md."""

import json
import statistics
from pathlib import Path
from typing import Dict, List

from mmlaplace.lab.probes.prediction import SEEDS
from mmlaplace.lab.side_by_side.attention_report import groups
from mmlaplace.lab.side_by_side.attention_study import ABLATIONS
from mmlaplace.lab.side_by_side.seed_differences import (
    by_attention,
    deviation_of_seeds,
    half_width,
    least_difference,
    least_stable,
    mean_top1,
    short,
)
from mmlaplace.writing import markdown_table

STUDY = 'small_images, fashion'
SPELLED = {'Gaussian': "kernel='gaussian'", 'literal': "whitening='literal'"}


def spelled(name: str) -> str:
    """An option as Python has it, or the name of an attention."""
    kind, _, option = name.partition(', ')
    key, _, value = option.partition('=')
    if not option:
        return short(kind)
    if option in SPELLED:
        return f'`{SPELLED[option]}`'
    text = repr(value) if value.isalpha() and value not in ('true', 'false') else value.title()
    return f'`{key}={text}`'


def signed(value: float) -> str:
    """A difference with its sign, which what rounds to 0 has not."""
    text = f'{value:+.1f}'
    return '0.0' if float(text) == 0 else text.replace('-', '−')


def options_table(
    runs: Dict[str, List[dict]], names: List[str], deviation: float, free: int
) -> str:
    """Options beside the first of them, with an interval by all attentions and one by their own."""
    top1 = {}  # by name and seed
    for name in names:
        if name in runs:
            top1[name] = {run['settings']['seed']: mean_top1([run]) for run in runs[name]}
    base = top1[names[0]]
    rows = []
    for name, values in top1.items():
        seeds = ', '.join(f'{value:.1f}' for value in values.values())
        pairs = [values[seed] - base[seed] for seed in values if seed in base]
        if name == names[0]:
            rows.append([f'{short(name)}, the defaults', seeds, '', '', ''])
            continue
        widths = (least_difference(deviation, free, len(pairs)), half_width(pairs))
        difference = signed(statistics.mean(pairs))
        rows.append([spelled(name), seeds, difference, *(f'± {width:.1f}' for width in widths)])
    return markdown_table(['', 'top-1 by seed', 'difference', 'by all', 'alone'], rows)


def ends_table(runs: Dict[str, List[dict]]) -> str:
    """The best and the last attentions, and softmax, with their top-1."""
    means = {}
    for name, runs_of_name in runs.items():
        if '=' in name:  # another option
            continue
        in_seeds = [run for run in runs_of_name if run['settings']['seed'] in SEEDS]
        if len(in_seeds) == len(SEEDS):
            means[name] = mean_top1(in_seeds)
    best_first = sorted(means, key=lambda name: -means[name])
    in_order = [f'{short(name)} {means[name]:.1f}' for name in best_first]
    rows = [
        ['the best', ', '.join(in_order[:6])],
        ['softmax', f'{means["SoftmaxAttention"]:.1f}'],
        ['the last', ', '.join(in_order[-5:])],
    ]
    return markdown_table(['', 'top-1 at 28², means over seeds 0, 1, 2'], rows)


def fashion_tables(path: Path) -> Dict[str, str]:
    """The tables by their names in the page.

    Args:
        path: The results.json of `compare trainings`.
    """
    results = groups(json.loads(path.read_text())['results'])[STUDY]
    kept = [made for made in results if made['settings']['attention'] != least_stable(results)]
    deviation, free = deviation_of_seeds(kept)
    asked: Dict[str, List[str]] = {}
    for names in ABLATIONS.values():
        known = asked.setdefault(names[0], [names[0]])
        known += [name for name in names if name not in known]
    runs = by_attention(results)
    tables = {name: options_table(runs, names, deviation, free) for name, names in asked.items()}
    return {'fashion': ends_table(runs), **tables}
