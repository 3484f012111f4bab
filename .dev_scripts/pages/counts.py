"""Numbers of models and attentions in the sentences of pages."""

from typing import Any, Iterable

from mmlaplace.checkpoints import PUBLISHED
from mmlaplace.checkpoints.dense import DENSE
from mmlaplace.models import FAMILIES, BaseAttention

from .files import ROOT, Files, with_count
from .options import registered

README, WEIGHTS = ROOT / 'README.md', ROOT / 'docs/released_weights.md'
CHANGELOG = ROOT / 'CHANGELOG.md'


def update(files: Files) -> None:
    released = sum(1 for family in FAMILIES.values() if family.published)
    classifiers, dense = PUBLISHED.values(), DENSE.values()
    counts = {
        README: {
            r'(\d+) families, \d+ of them with\s+weights': len(FAMILIES),
            r'families, (\d+) of them with\s+weights': released,
            r'all (\d+) families': released,
            r'(\d+) attentions that fit': len(registered(BaseAttention)),
            r'(\d+) released backbones': with_file(classifiers),
            r'(\d+) detectors and segmentors\*\*': with_file(dense),
            r'(\d+) further files need a manual\s+download': on_page(classifiers) + on_page(dense),
        },
        CHANGELOG: {r'- (\d+) attentions \(': len(registered(BaseAttention))},
        WEIGHTS: {
            r'(\d+) models have the address of a file': with_file(classifiers),
            r'and (\d+) more a web page': on_page(classifiers),
        },
    }
    for page, each in counts.items():
        for around, count in each.items():
            files.write(page, with_count(files.read(page), around, count))


def with_file(models: Iterable[Any]) -> int:
    return sum(1 for model in models if model.weights)


def on_page(models: Iterable[Any]) -> int:
    return sum(1 for model in models if model.page)
