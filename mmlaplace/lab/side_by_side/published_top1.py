"""Published top-1 on ImageNet-1k for each candidate.

That of mmlaplace's models is in the metafiles. That of other projects is in published_top1.yml.
"""

from functools import cache
from pathlib import Path
from typing import Dict, List, NamedTuple

from mmlaplace.model_zoo import get_config, read_models, read_yaml


class Published(NamedTuple):
    """The published result of a candidate.

    Attributes:
        family: Family of the model, such as ``'Swin'``.
        model: Name of the model, such as ``'Swin-T'``.
        top1: Top-1 accuracy in percent.
        side: Side of the test images in pixels.
        recipe: The training, such as ``'300 epochs'``.
        source: The paper or file that has the figure.
        ours: Whether the model is one of mmlaplace.
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
    """Published results by the name of the candidate. Several candidates can be one network."""
    found = {}
    for model in read_models():
        top1 = model.metadata.get('Published', {}).get('Top 1 Accuracy')
        if model.task != 'classification' or top1 is None:
            continue
        backbone = get_config(model.name).model.backbone
        if 'img_size' in backbone or 'attn_cfg' in backbone:  # a variant of an arch
            continue
        name = model.name.partition('_')[0]
        where = f'configs/classification/{model.family}/README.md'
        found[name] = Published(backbone.type, name, top1, 224, 'as published', where, True)
    for family in read_yaml(Path(__file__).with_suffix('.yml')):
        for model, row in family['models'].items():
            whence = (row['side'], family['recipe'], family['source'], False)
            for name in row['candidates']:
                found[name] = Published(family['family'], model, row['top1'], *whence)
    return found


def peers() -> List[str]:
    """The name of one candidate for each model of another project."""
    first: Dict[str, str] = {}
    for name, each in published().items():
        if not each.ours:
            first.setdefault(each.model, name)
    return list(first.values())
