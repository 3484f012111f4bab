"""The tables of options on Fashion-MNIST in docs/attention_comparison.md."""

import json
import statistics
from itertools import combinations
from pathlib import Path
from typing import Dict, List, Tuple

from probe_sections import filled, plain

from mmlaplace.lab.comparison.attention_report import groups
from mmlaplace.lab.comparison.attention_study import ABLATIONS
from mmlaplace.lab.comparison.seed_differences import (
    by_attention,
    deviation_of_seeds,
    half_width,
    least_difference,
    least_stable,
    mean_top1,
    short,
)
from mmlaplace.lab.probes.prediction import SEEDS

STUDY = 'small_images, fashion'
START, END = '<!-- made by .dev_scripts/make_which_attention.py -->', '<!-- made until here -->'
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
) -> Tuple[str, Dict[str, int]]:
    """Options beside the first of them, with an interval by all attentions and one by their own.

    Returns:
        The table, and by option how many of the two intervals leave out 0.
    """
    top1 = {name: {run['settings']['seed']: mean_top1([run]) for run in runs[name]}
            for name in names if name in runs}  # fmt: skip
    base, rows, certain = top1[names[0]], [], {}
    for name, values in top1.items():
        seeds = ', '.join(f'{value:.1f}' for value in values.values())
        pairs = [values[seed] - base[seed] for seed in values if seed in base]
        if name == names[0]:
            rows.append([f'{short(name)}, the defaults', seeds, '', '', ''])
            continue
        intervals = (least_difference(deviation, free, len(pairs)), half_width(pairs))
        difference = statistics.mean(pairs)
        certain[name] = sum(abs(difference) > width for width in intervals)
        widths = [f'± {width:.1f}' for width in intervals]
        rows.append([spelled(name), seeds, signed(difference), *widths])
    header = ['', 'top-1 by seed', 'difference', 'by all', 'alone']
    return plain(header, rows), certain


def fashion_section(path: Path) -> str:
    """What differences show, and the options of each attention.

    Args:
        path: The results.json of compare_attentions.py.
    """
    results = groups(json.loads(path.read_text())['results'])[STUDY]
    without = least_stable(results)
    kept = [made for made in results if made['settings']['attention'] != without]
    deviation, free = deviation_of_seeds(kept)
    runs = by_attention(results)
    three = {name: [run for run in made if run['settings']['seed'] in SEEDS]
             for name, made in runs.items() if '=' not in name}  # fmt: skip
    means = {name: mean_top1(made) for name, made in three.items() if len(made) == len(SEEDS)}
    means = dict(sorted(means.items(), key=lambda item: -item[1]))
    least = least_difference(deviation, free, len(SEEDS))
    stable = [top1 for name, top1 in means.items() if name != without]
    pairs = [abs(a - b) for a, b in combinations(stable, 2)]
    softmax = means['SoftmaxAttention']
    above = [name for name in means if means[name] > softmax + least]
    in_order = [f'{short(name)} {top1:.1f}' for name, top1 in means.items()]
    ends = [
        ['the best', ', '.join(in_order[:6])],
        ['softmax', f'{softmax:.1f}'],
        ['the last', ', '.join(in_order[-5:])],
    ]
    parts = [
        plain(['', 'top-1 at 28², means over seeds 0, 1, 2'], ends),
        f'Of {len(means)} attentions and variants with three seeds, {short(without)} has the seeds '
        f'that differ most. Without it, what is left of seeds has a deviation of {deviation:.2f} '
        f'points, with {free} degrees of freedom. Two attentions with three seeds differ for sure '
        f'(95 %) from {least:.2f} points, as {sum(pair > least for pair in pairs)} of {len(pairs)} '
        f'pairs do; by chance, {0.05 * len(pairs):.0f} would. {len(above)} are above softmax for '
        f'sure, by {min(means[n] - softmax for n in above):.1f} to '
        f'{max(means[n] - softmax for n in above):.1f} points.',
    ]
    asked: Dict[str, List[str]] = {}
    for names in ABLATIONS.values():
        known = asked.setdefault(names[0], [names[0]])
        known += [name for name in names if name not in known]
    tables = {name: options_table(runs, names, deviation, free) for name, names in asked.items()}
    certain: Dict[str, int] = {}
    for name, (table, found) in tables.items():
        parts.append(f'### Options of {name}\n\n{table}')
        certain.update(found)

    def listed(intervals: int) -> str:
        names = [name for name, count in certain.items() if count == intervals]
        kinds = [short(name.partition(', ')[0]) for name in names]
        return ', '.join(
            spelled(name) if kind == spelled(name) else f'{spelled(name)} of {kind}'
            for kind, name in zip(kinds, names)
        )

    parts.append(
        f'Of {len(certain)} options, both intervals leave out 0 for {listed(2)}. One of them does '
        f'for {listed(1)}. By chance, {0.05 * len(certain):.0f} of each kind would.'
    )
    parts[1], parts[-1] = filled(parts[1]), filled(parts[-1])
    return '\n\n'.join([START, *parts, END])


def with_section(page: Path, section: str) -> str:
    """The text of a page with its section made anew."""
    before, _, rest = page.read_text().partition(START)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f'{page} lacks {START} or {END}; put them around the section again')
    return before + section + after
