"""Build backbones of mmlaplace, the toolboxes, timm and configs by name.

Backbones of mmlaplace and of toolboxes return their last map only. The forms of a name:

laplacianformer-tiny                       of mmlaplace: a name of create_backbone
laplacianformer-tiny+SoftmaxAttention      the same with another attention in every stage, and
                                           without a class token
mmpretrain:ConvNeXt-tiny                   of a toolbox: CLASS-ARCH or CLASS-DEPTH
mmpretrain:ResNet-50
mmdet:PyramidVisionTransformerV2-b1
timm:efficientvit_b1                       of timm
my_config.py                               of a config, with the options that the config sets
mmdet::pvt/retinanet_pvt-t_fpn_1x_coco.py  of a toolbox's config
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

from mmlaplace.model_zoo import create_backbone, options_of, read_backbones
from mmlaplace.models.known_options import did_you_mean
from mmlaplace.toolboxes import PACKAGES, image_channels, require_toolbox

from .attention_file import registered_attentions

# A function that builds a backbone. Its argument ``train`` selects training or inference.
Builder = Callable[..., nn.Module]

SOURCES = ('', *PACKAGES, 'timm')  # '' is mmlaplace
# Sizes of backbones whose classes have no named sizes. They are those of mmdet's configs/pvt.
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
    """The function that builds a backbone, by a name in one of the forms above.

    Raises:
        ValueError: If there is no such backbone. The message lists similar names.
        ImportError: If the backbone's package is not installed. The message says how to install
            it.
    """
    if name.endswith('.py'):
        if '::' not in name and not Path(name).is_file():
            raise ValueError(f'{name!r}: there is no such config; check the path')
        return partial(of_config, name)
    source = name.rpartition(':')[0]
    if source not in SOURCES:
        raise ValueError(
            f'{name!r}: there is no source {source!r}; take one of {", ".join(SOURCES[1:])}'
        )
    plain, plus, attention = name.partition('+')
    known = catalogue(source)
    if plain not in known:
        lower, family = {other.lower(): other for other in known}, plain.partition('-')[0].lower()
        near = [key for key in lower if key.startswith(family)]
        near += difflib.get_close_matches(plain.lower(), lower, 5, cutoff=0.4)
        hint = ', '.join(dict.fromkeys(lower[key] for key in near[:5]))
        raise ValueError(
            f'{name!r}: there is no such backbone. Similar names are {hint}; --list prints all'
        )
    if not plus:
        return known[plain]
    attentions = registered_attentions()
    if source or attention not in attentions:
        raise ValueError(
            f'{name!r}: a backbone of mmlaplace must stand before +, and an attention after it'
            f'{did_you_mean(attention, attentions)}; the attentions are {", ".join(attentions)}'
        )
    return partial(known[plain], attn_cfg=dict(type=attention))


@cache
def catalogue(source: str) -> Dict[str, Builder]:
    """The functions that build all backbones of a source, by name.

    Args:
        source: ``''`` for mmlaplace, the name of a toolbox, or ``'timm'``.

    Raises:
        ImportError: If the source is not installed. The message says how to install it.
    """
    if source == 'timm':
        try:
            timm = importlib.import_module('timm')
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f'{source} cannot be imported ({error}); install it with pip install timm',
                name=error.name,
            ) from error
        return {f'timm:{name}': partial(of_timm, name) for name in timm.list_models()}
    if not source:
        return {model.name: partial(of_mmlaplace, model.name) for model in read_backbones()}
    require_toolbox(source)
    importlib.import_module(f'{source}.models')  # registers its backbones
    classes = importlib.import_module(f'{source}.registry').MODELS.module_dict
    builders: Dict[str, Builder] = {}
    for cls in classes.values():
        if not belongs(cls, source):
            continue
        for size, options in sizes_of(cls).items():
            name = f'{source}:{cls.__name__}'
            if size:
                name += f'-{size}'
            builders[name] = partial(of_class, cls, **options)
    return builders


def belongs(cls: type, source: str) -> bool:
    """Whether a registered class is a backbone that the toolbox itself defines."""
    own = cls.__module__.startswith(f'{source}.models.backbones.')
    return own and inspect.isclass(cls) and issubclass(cls, BaseModule)


def sizes_of(cls: type) -> Dict[str, Dict[str, Any]]:
    """Arguments of a class for each of its named sizes. A class without sizes has one, ``''``."""
    if cls.__name__ in OTHER_SIZES:
        return OTHER_SIZES[cls.__name__]
    arguments = arguments_of(cls)
    zoo = getattr(cls, 'arch_zoo', getattr(cls, 'arch_settings', None))
    for argument in ('arch', 'depth'):
        if argument in arguments and isinstance(zoo, dict):
            # mmpretrain has two names for a size, such as 't' and 'tiny', with one dict. The last
            # one is kept. Tuples of other sizes can be one object.
            names = {
                id(size) if isinstance(size, dict) else name: name for name, size in zoo.items()
            }.values()
            return {str(name): {argument: name} for name in names}
    return {'': {}}


def arguments_of(cls: type) -> Dict[str, Any]:
    """Arguments of a class with their defaults, and those that ``**kwargs`` passes to its bases."""
    defaults: Dict[str, Any] = {}
    for base in cls.__mro__:
        signature = inspect.signature(base.__init__)  # type: ignore[misc]  # classes, not instances
        parameters = signature.parameters.values()
        for parameter in parameters:
            defaults.setdefault(parameter.name, parameter.default)
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            break
    return defaults


def of_mmlaplace(name: str, train: bool, **options: Any) -> nn.Module:
    """Build a backbone of mmlaplace that returns its last map only, without stochastic depth."""
    known = MODELS.get(options_of(name)['type']).known_options()
    if 'attn_cfg' in options and 'with_cls_token' in known:
        options['with_cls_token'] = False  # some attentions have no place for it
    return create_backbone(name, out_indices=-1, **options)


def of_class(cls: type, train: bool, **options: Any) -> nn.Module:
    """Build a backbone that returns its last map only, without stochastic depth.

    For inference, branches are merged where the class has ``switch_to_deploy``.
    """
    arguments = arguments_of(cls)
    if isinstance(arguments.get('out_indices'), (list, tuple)):
        options['out_indices'] = (max(arguments['out_indices']),)
    if 'drop_path_rate' in arguments:
        options['drop_path_rate'] = 0.0
    model = cls(**options)
    if not train and hasattr(model, 'switch_to_deploy'):  # RepVGG, MobileOne, LeViT
        model.switch_to_deploy()
    return model


def of_timm(name: str, train: bool, **options: Any) -> nn.Module:
    """Build a model of timm without its classifier. For inference, its branches are merged."""
    timm = importlib.import_module('timm')
    model = timm.create_model(name, pretrained=False, num_classes=0, **options)
    if train:
        return model
    return importlib.import_module('timm.utils').reparameterize_model(model.eval())


def config_of(path: str) -> Config:
    """The config of a path, or of a toolbox's name of it."""
    return hub.get_config(path) if '::' in path else Config.fromfile(path)


def channels_of(name: str) -> int:
    """The channels of the images that a backbone takes: three, if it is not one of a config."""
    return image_channels(config_of(name).model.backbone) if name.endswith('.py') else 3


def of_config(path: str, train: bool) -> nn.Module:
    """Build the backbone of a config, in the scope of its toolbox."""
    cfg = config_of(path)
    scope = cfg.get('default_scope')
    if scope in PACKAGES:
        require_toolbox(scope)
        importlib.import_module(f'{scope}.models')
    with DefaultScope.overwrite_default_scope(scope):
        model = MODELS.build(dict(cfg.model.backbone, init_cfg=None))
    return revert_sync_batchnorm(model)  # SyncBN is for several GPUs only
