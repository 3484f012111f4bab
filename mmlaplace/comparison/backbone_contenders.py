"""Backbones by name: of ours, of a toolbox, of timm, and of a config. Each makes its last map.

laplacianformer-tiny                       ours: CLASS-ARCH, in lower case
laplacianformer-tiny+SoftmaxAttention      ours, with another attention in every stage
mmpretrain:ConvNeXt-tiny                   a toolbox's: CLASS-ARCH, or CLASS-DEPTH
mmpretrain:ResNet-50
mmdet:PyramidVisionTransformerV2-b1
timm:efficientvit_b1                       timm's
my_config.py                               the backbone of a config, as it stands there
mmdet::pvt/retinanet_pvt-t_fpn_1x_coco.py  the same, of a toolbox's config
"""

import difflib
import importlib
import inspect
from functools import cache, partial
from pathlib import Path
from typing import Any, Callable, Dict

import torch.nn as nn
from mmengine import hub
from mmengine.config import Config
from mmengine.model import BaseModule, revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope

from mmlaplace.models import BaseAttention, PyramidBackbone
from mmlaplace.toolboxes import PACKAGES, require_toolbox

# Builds a backbone, to train or for inference, which its argument ``train`` says.
Builder = Callable[..., nn.Module]

SOURCES = ('', *PACKAGES, 'timm')  # '' is this package
# Sizes of backbones that name none themselves, as in mmdet's configs/pvt.
PVT_LAYERS = dict(tiny=[2, 2, 2, 2], small=[3, 4, 6, 3], medium=[3, 4, 18, 3], large=[3, 8, 27, 3])
PVT_V2: Dict[str, Dict[str, Any]] = dict(
    b0=dict(num_layers=PVT_LAYERS['tiny'], embed_dims=32),
    b1=dict(num_layers=PVT_LAYERS['tiny']),
    b2=dict(num_layers=PVT_LAYERS['small']),
    b3=dict(num_layers=PVT_LAYERS['medium']),
    b4=dict(num_layers=PVT_LAYERS['large']),
    b5=dict(num_layers=[3, 6, 40, 3], mlp_ratios=(4, 4, 4, 4)),
)
OTHER_SIZES: Dict[str, Dict[str, Dict[str, Any]]] = {
    'PyramidVisionTransformer': {
        size: dict(num_layers=layers) for size, layers in PVT_LAYERS.items()
    },
    'PyramidVisionTransformerV2': PVT_V2,
}


def find(name: str) -> Builder:
    """The builder of a contender.

    Raises:
        ValueError: For an unknown name; says which are near.
        ImportError: If the package it comes from is not installed; says how to install it.
    """
    if name.endswith('.py'):
        if '::' not in name and not Path(name).is_file():
            raise ValueError(f'{name!r}: there is no such config')
        return partial(of_config, name)
    source = name.rpartition(':')[0]
    if source not in SOURCES:
        raise ValueError(f'{name!r}: there is no {source!r}, but {", ".join(SOURCES[1:])}')
    plain, plus, attention = name.partition('+')
    known = catalogue(source)
    if plain not in known:
        lower, family = {other.lower(): other for other in known}, plain.partition('-')[0].lower()
        near = [key for key in lower if key.startswith(family)]
        near += difflib.get_close_matches(plain.lower(), lower, 5, cutoff=0.4)
        hint = ', '.join(dict.fromkeys(lower[key] for key in near[:5]))
        raise ValueError(f'{name!r}: there is no such backbone; near are {hint}; --list prints all')
    if not plus:
        return known[plain]
    attentions = sorted(
        key
        for key, cls in MODELS.module_dict.items()
        if inspect.isclass(cls) and issubclass(cls, BaseAttention)
    )
    if source or attention not in attentions:
        raise ValueError(
            f'{name!r}: after + comes an attention for a backbone of ours: {", ".join(attentions)}'
        )
    return partial(known[plain], attn_cfg=dict(type=attention))


@cache
def catalogue(source: str) -> Dict[str, Builder]:
    """All backbones of a source by name.

    Raises:
        ImportError: If it is not installed; says how to install it.
    """
    if source == 'timm':
        try:
            timm = importlib.import_module('timm')
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f'{source} cannot be imported ({error}); pip install timm', name=error.name
            ) from error
        return {f'timm:{name}': partial(of_timm, name) for name in timm.list_models()}
    title: Callable[[str], str]
    if not source:
        classes, prefix, title = MODELS.module_dict, '', str.lower
    else:
        require_toolbox(source)
        importlib.import_module(f'{source}.models')  # registers them
        classes = importlib.import_module(f'{source}.registry').MODELS.module_dict
        prefix, title = f'{source}:', str
    found: Dict[str, Builder] = {}
    for cls in filter(partial(belongs, source=source), classes.values()):
        for size, options in sizes_of(cls).items():
            name = prefix + title(cls.__name__) + (f'-{size}' if size else '')
            found[name] = partial(of_class, cls, **options)
    return found


def belongs(cls: type, source: str) -> bool:
    """Whether a registered class is a backbone of a source's own, rather than ours in its scope."""
    if not source:
        return inspect.isclass(cls) and issubclass(cls, PyramidBackbone)
    own = cls.__module__.startswith(f'{source}.models.backbones.')
    return own and inspect.isclass(cls) and issubclass(cls, BaseModule)


def sizes_of(cls: type) -> Dict[str, Dict[str, Any]]:
    """The arguments that make each size of a backbone, by its name. One without a name has none."""
    if cls.__name__ in OTHER_SIZES:
        return OTHER_SIZES[cls.__name__]
    arguments = arguments_of(cls)
    zoo = getattr(cls, 'arch_zoo', getattr(cls, 'arch_settings', None))
    for argument in ('arch', 'depth'):
        if argument in arguments and isinstance(zoo, dict):
            # mmpretrain has 't' and 'tiny' for the same size: the last stays.
            names = {id(size): name for name, size in zoo.items()}.values()
            return {str(name): {argument: name} for name in names}
    return {'': {}}


def arguments_of(cls: type) -> Dict[str, Any]:
    """Defaults of a class's arguments, and of those that it hands on to its bases."""
    found: Dict[str, Any] = {}
    for base in cls.__mro__:
        signature = inspect.signature(base.__init__)  # type: ignore[misc]  # of these very classes
        parameters = signature.parameters.values()
        found = {**{each.name: each.default for each in parameters}, **found}
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            break
    return found


def of_class(cls: type, train: bool, **options: Any) -> nn.Module:
    """A backbone that makes its last map alone, without stochastic depth."""
    arguments = arguments_of(cls)
    if issubclass(cls, PyramidBackbone):
        options['out_indices'] = -1
    elif isinstance(arguments.get('out_indices'), (list, tuple)):
        options['out_indices'] = (max(arguments['out_indices']),)
    if 'drop_path_rate' in arguments:
        options['drop_path_rate'] = 0.0
    model = cls(**options)
    if not train and hasattr(model, 'switch_to_deploy'):  # RepVGG, MobileOne, LeViT
        model.switch_to_deploy()
    return model


def of_timm(name: str, train: bool) -> nn.Module:
    """A model of timm without its classifier, for inference with its branches merged."""
    timm = importlib.import_module('timm')
    model = timm.create_model(name, pretrained=False, num_classes=0)
    if train:
        return model
    return importlib.import_module('timm.utils').reparameterize_model(model.eval())


def of_config(path: str, train: bool) -> nn.Module:
    """The backbone of a config, in the scope of its toolbox."""
    cfg = hub.get_config(path) if '::' in path else Config.fromfile(path)
    scope = cfg.get('default_scope')
    if scope in PACKAGES:
        require_toolbox(scope)
        importlib.import_module(f'{scope}.models')
    with DefaultScope.overwrite_default_scope(scope):
        model = MODELS.build(dict(cfg.model.backbone, init_cfg=None))
    return revert_sync_batchnorm(model)  # which trains on several GPUs alone
