"""Published top-1 on ImageNet-1k by contender: ours in the metafiles, the peers' in a table."""

from functools import cache
from pathlib import Path
from typing import Dict, List, NamedTuple

import yaml

from mmlaplace.model_zoo import get_config, read_models


class Published(NamedTuple):
    """What was published of a contender.

    Attributes:
        family, model: Such as ``'Swin'`` and ``'Swin-T'``.
        top1: In percent.
        side: Of the test images, in pixels.
        recipe: How it was trained, as far as it differs.
        source: Where it stands.
        ours: Whether the model is one of this project.
    """

    family: str
    model: str
    top1: float
    side: int
    recipe: str
    source: str
    ours: bool


@cache
def published() -> Dict[str, Published]:
    """By the name of the contender. Several contenders can be the same network."""
    found = {}
    for model in read_models():
        top1 = model.metadata.get('Published', {}).get('Top 1 Accuracy')
        if model.task != 'classification' or top1 is None:
            continue
        backbone = get_config(model.name).model.backbone
        if 'img_size' in backbone or 'attn_cfg' in backbone:  # a variant, which is no arch
            continue
        name = f'{backbone.type.lower()}-{backbone.arch}'
        where = f'configs/classification/{model.family}/README.md'
        found[name] = Published(backbone.type, name, top1, 224, 'as published', where, True)
    for family in yaml.safe_load(Path(__file__).with_suffix('.yml').read_text()):
        for model, row in family['models'].items():
            whence = (row['side'], family['recipe'], family['source'], False)
            for name in row['contenders']:
                found[name] = Published(family['family'], model, row['top1'], *whence)
    return found


def peers() -> List[str]:
    """A contender for each of the others' models."""
    first: Dict[str, str] = {}
    for name, each in published().items():
        if not each.ours:
            first.setdefault(each.model, name)
    return list(first.values())
