"""Whether a probe predicts the accuracy on images: rank correlations with an interval."""

import json
from pathlib import Path
from typing import Dict, NamedTuple, Optional

import numpy as np

from ...model_zoo import files_root, read_yaml
from ..side_by_side.attention_report import groups, with_defaults
from ..side_by_side.attention_study import STUDIES
from ..side_by_side.seed_differences import (
    by_attention,
    deviation_of_seeds,
    least_difference,
    mean_top1,
    short,
)

PUBLISHED = 'configs/probes/published_top1.yml'
DRAWS = 2000
FEWEST = 6  # attentions, for a correlation
SEEDS = (0, 1, 2)  # that all attentions have


class Correlation(NamedTuple):
    """A rank correlation over attentions.

    Attributes:
        rho: Spearman's coefficient.
        low, high: The ends of its interval.
        attentions: Their number.
    """

    rho: float
    low: float
    high: float
    attentions: int

    @property
    def certain(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Spearman's coefficient along the last axis, the Pearson correlation of the ranks.

    It is NaN where all values are equal.

    Examples:
        >>> import numpy as np
        >>> from mmlaplace.lab.probes.prediction import spearman
        >>> round(float(spearman(np.array([1, 2, 3, 4]), np.array([10, 20, 40, 30]))), 3)
        0.8
    """
    from scipy.stats import rankdata

    a, b = (rankdata(values, axis=-1) for values in (x, y))
    a, b = (r - r.mean(-1, keepdims=True) for r in (a, b))
    with np.errstate(invalid='ignore'):
        return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def correlate(probe: Dict[str, float], images: Dict[str, float]) -> Optional[Correlation]:
    """Correlate two scores over the attentions that have both, with a 95 % bootstrap interval.

    The interval is between percentiles of 2,000 draws of attentions with replacement, always the
    same draws.

    Args:
        probe: Accuracy in a probe by attention.
        images: Accuracy on images by attention.

    Returns:
        The correlation. None for fewer than six attentions, or equal scores.
    """
    names = [name for name in probe if name in images]
    if len(names) < FEWEST:
        return None
    x, y = (np.array([scores[name] for name in names]) for scores in (probe, images))
    rho = float(spearman(x, y))
    if np.isnan(rho):
        return None
    drawn = np.random.default_rng(0).integers(len(names), size=(DRAWS, len(names)))
    # A draw of equal scores has no order. Its correlation counts as 0.
    low, high = np.percentile(np.nan_to_num(spearman(x[drawn], y[drawn])), [2.5, 97.5])
    return Correlation(rho, float(low), float(high), len(names))


class TrainedHere(NamedTuple):
    """Accuracies of models that were trained here.

    Attributes:
        top1: Mean top-1 in % over the seeds 0, 1 and 2 by attention, at the training size.
        seeds_differ: Points from which two means of three seeds differ for sure (95 %).
    """

    top1: Dict[str, float]
    seeds_differ: float


def trained_here(path: Path) -> Dict[str, TrainedHere]:
    """The accuracies of each study in its host.

    Runs without the local branch and with further options are left out, and studies with too few
    attentions for a correlation.

    Args:
        path: The results.json of ``compare trainings``.
    """
    comparable = groups(with_defaults(json.loads(path.read_bytes())['results']))
    trained = {}
    for study, settings in STUDIES.items():
        results = [
            made
            for made in comparable.get(f'{settings.host}, {study}', [])
            if made['settings']['seed'] in SEEDS and '=' not in made['settings']['attention']
        ]
        runs = by_attention(results)
        if len(runs) >= FEWEST:
            top1 = {short(name): mean_top1(of_name) for name, of_name in runs.items()}
            differ = least_difference(*deviation_of_seeds(results), len(SEEDS))
            trained[study] = TrainedHere(top1, differ)
    return trained


def published() -> Dict[str, Dict[str, float]]:
    """Published top-1 on ImageNet-1k by host and attention."""
    hosts = read_yaml(files_root() / PUBLISHED)
    return {
        host: {name: top1 for paper in papers for name, top1 in paper['top1'].items()}
        for host, papers in hosts.items()
    }
