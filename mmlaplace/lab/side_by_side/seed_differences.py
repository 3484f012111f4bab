"""Tell differences of attentions from differences of seeds."""

import math
import statistics
from typing import Dict, List, Optional, Tuple

import numpy as np


def short(name: str) -> str:
    """The name of an attention in a table, without the suffix ``Attention``."""
    return name.replace('Attention', '')


def by_attention(results: List[dict]) -> Dict[str, List[dict]]:
    """Group results by attention, the most accurate first, each sorted by seed."""
    found: Dict[str, List[dict]] = {}
    for result in sorted(results, key=lambda result: result['settings']['seed']):
        found.setdefault(result['settings']['attention'], []).append(result)
    return dict(sorted(found.items(), key=lambda item: -mean_top1(item[1])))


def mean_top1(runs: List[dict], column: Optional[str] = None) -> float:
    """Mean top-1 in a column. Default: the first, where test images have the training size."""
    return statistics.mean(run['top1'][column or next(iter(run['top1']))] for run in runs)


def differences(results: List[dict], base: str = 'SoftmaxAttention') -> Dict[str, List[float]]:
    """By attention, the differences of its top-1 from that of ``base``, one for each shared seed.

    Attentions that share fewer than two seeds with ``base`` are left out.
    """
    found = by_attention(results)
    top1 = {
        name: {run['settings']['seed']: next(iter(run['top1'].values())) for run in runs}
        for name, runs in found.items()
    }
    own = top1.get(base, {})
    pairs = {
        name: [one[seed] - own[seed] for seed in one if seed in own]
        for name, one in top1.items()
        if name != base
    }
    return {name: values for name, values in pairs.items() if len(values) > 1}


def half_width(values: List[float]) -> float:
    """Half the width of the 95 % interval of a mean, by Student's t."""
    from scipy.special import stdtrit  # with the toolboxes, not with us

    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(stdtrit(len(values) - 1, 0.975)) * error


def deviation_of_seeds(results: List[dict]) -> Tuple[float, int]:
    """Standard deviation of top-1 over seeds in all attentions, and its degrees of freedom.

    Two or three seeds of one attention hardly tell its deviation. Those of all attentions do, if
    seeds matter alike for each. What a seed adds to all attentions is taken off, as it changes no
    difference of equal seeds. The deviation is NaN where nothing is left to tell it, as with one
    seed or one attention.
    """
    runs = {
        name: {run['settings']['seed']: mean_top1([run]) for run in one}
        for name, one in by_attention(results).items()
    }
    pairs = [(name, seed) for name, one in runs.items() for seed in one]
    effects = [*runs, *{seed for _, seed in pairs}]
    model = np.array([[effect in pair for effect in effects] for pair in pairs], float)
    top1 = np.array([runs[name][seed] for name, seed in pairs])
    effect, _, rank, _ = np.linalg.lstsq(model, top1, rcond=None)
    free = len(pairs) - int(rank)
    squares = float(np.sum((top1 - model @ effect) ** 2))
    return (math.sqrt(squares / free) if free else math.nan), free


def least_difference(deviation: float, free: int, seeds: int) -> float:
    """The half width of the 95 % interval of the difference of two means of so many seeds.

    Args:
        deviation: Standard deviation over seeds.
        free: Its degrees of freedom.
        seeds: Number of seeds of each attention.
    """
    from scipy.special import stdtrit  # with the toolboxes, not with us

    return float(stdtrit(free, 0.975)) * deviation * math.sqrt(2 / seeds)


def least_stable(results: List[dict]) -> str:
    """The attention whose seeds differ most, or ``''`` where none has two."""
    alone = {
        name: [mean_top1([run]) for run in runs]
        for name, runs in by_attention(results).items()
        if len(runs) > 1
    }
    return max(alone, key=lambda name: statistics.stdev(alone[name]), default='')


def seeds_text(results: List[dict]) -> str:
    """What differences these trainings can show: with all attentions, and without the least stable.

    It is empty if the deviation over seeds is not known.
    """
    sentences = []
    for without in ('', least_stable(results)):
        kept = [run for run in results if run['settings']['attention'] != without]
        deviation, free = deviation_of_seeds(kept)
        if not free:
            break
        seen = ', '.join(
            f'{least_difference(deviation, free, seeds):.2f} with {seeds}' for seeds in (1, 2, 3, 5)
        )
        start = f'Without {short(without)}, whose seeds differ most, seeds' if without else 'Seeds'
        sentences.append(
            f'{start} have a deviation of {deviation:.2f} points within attentions, with {free} '
            f'degrees of freedom, less what they add to all attentions. Two attentions differ for '
            f'sure (95 %) from {seen} equal seeds of each.'
        )
    return ' '.join(sentences)
