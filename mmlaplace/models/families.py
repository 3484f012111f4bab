"""All families, found by the names of their files in ``backbones/``."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Dict

from ..checkpoints.dense import DENSE
from ..checkpoints.published import PUBLISHED
from . import backbones
from .pyramid import Family

FAMILIES: Dict[str, Family] = {
    module.name: import_module(f'{backbones.__name__}.{module.name}').FAMILY
    for module in iter_modules(backbones.__path__)
}
for _family in FAMILIES.values():
    for _name, _model in _family.published.items():
        PUBLISHED[_name] = _model._replace(
            licence=_model.licence or _family.licence, weights_licence=_family.weights_licence
        )
    for _name, _whole in _family.dense.items():
        DENSE[_name] = _whole._replace(licence=_whole.licence or _family.licence)


def licence_of_backbone(backbone: type) -> str:
    """The licence of the repository of a backbone's authors, as :class:`Family` has it.

    Args:
        backbone: The class of the backbone, or one that inherits from it.

    Returns:
        ``'none'`` if the repository has no licence, and an empty string if the licence is not known
        here, as for a backbone of another project.

    Examples:
        >>> from mmlaplace.models.backbones import PolaFormerPVT
        >>> from mmlaplace.models.families import licence_of_backbone
        >>> licence_of_backbone(PolaFormerPVT), licence_of_backbone(dict)
        ('MIT', '')
    """
    licences = {cls: family.licence for family in FAMILIES.values() for cls in family.backbones}
    return next((licences[cls] for cls in backbone.__mro__ if cls in licences), '')
