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
    PUBLISHED.update(_family.published)
    DENSE.update(_family.dense)
