"""The model zoo: list the models and backbones of mmlaplace, and build them by name."""

import importlib
import re
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import torch.nn as nn
import yaml
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope

from .checkpoints import PUBLISHED, load_weights
from .checkpoints.dense import DENSE
from .checkpoints.of_timm import backbone_of_timm, is_of_timm
from .checkpoints.released import address_of, released_place
from .models import FAMILIES
from .models.initialising import initialise
from .models.known_options import did_you_mean
from .toolboxes import TOOLBOXES, require_toolbox

TASKS = (*TOOLBOXES, 'backbone')
COUNTED = ('Parameters', 'MACs')  # of the metafiles
# Of the backbone of a classifier, what is not of the network itself.
OF_CLASSIFIER = ('out_indices', 'out_type', 'drop_path_rate', 'frozen_stages')


class ModelInfo(NamedTuple):
    """One entry of a metafile, or a backbone.

    Attributes:
        name: Name of the config, without ``.py``, or of the backbone.
        task: ``'classification'``, ``'detection'``, ``'segmentation'`` or ``'backbone'``.
        family: The folder of the config, such as ``'laplacianformer'``.
        config: The config file. None of a backbone that no classifier of the metafiles has.
        metadata: The ``Metadata`` of the entry: parameters, MACs and published scores. Of a
            backbone, the parameters and MACs of its classifier, with the head, if there is one.
        arch: Class, arch and further options of a backbone without a config. Otherwise None.
    """

    name: str
    task: str
    family: str
    config: Optional[Path]
    metadata: Dict[str, Any]
    arch: Optional[Dict[str, Any]] = None


def files_root() -> Path:
    """The folder with ``configs`` and ``model-index.yml``.

    It is ``.mim`` in an installed package, and the root of a clone otherwise.

    Raises:
        FileNotFoundError: If neither folder has the files.
    """
    package = Path(__file__).resolve().parent
    for root in (package / '.mim', package.parent):
        if (root / 'model-index.yml').is_file():
            return root
    raise FileNotFoundError(
        f'{package} has no .mim folder with the configs: install mmlaplace with pip, or import it '
        'from a clone of its repository'
    )


def read_yaml(path: Path) -> Any:
    """Read a YAML file by the safe loader, in C where PyYAML has it, which is six times faster."""
    loader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
    return yaml.load(path.read_text(encoding='utf-8'), loader)


def read_index() -> List[Path]:
    """The metafiles that ``model-index.yml`` lists, relative to :func:`files_root`."""
    return [Path(metafile) for metafile in read_yaml(files_root() / 'model-index.yml')['Import']]


def read_models() -> List[ModelInfo]:
    """All models of the metafiles that ``model-index.yml`` lists."""
    return list(_models(files_root()))


@cache
def _models(root: Path) -> List[ModelInfo]:
    models = []
    for metafile in read_index():
        _, task, family, _ = metafile.parts
        for entry in read_yaml(root / metafile)['Models']:
            config = root / entry['Config']
            models.append(ModelInfo(entry['Name'], task, family, config, entry['Metadata']))
    return models


def read_backbones() -> List[ModelInfo]:
    """All backbones: those of the classifiers, and archs that no classifier has, such as micro.

    The name is the part of a classifier's name before its first ``_``, or the family and the arch:
    ``'softpp-tiny'``, ``'laplacianformer-micro'``. timm has the same names with ``_`` for ``-``.
    """
    return list(_backbones(files_root()))


@cache
def _backbones(root: Path) -> List[ModelInfo]:
    backbones: Dict[str, ModelInfo] = {}
    for model in _models(root):
        name = model.name.partition('_')[0]
        if model.task == 'classification' and name not in backbones:
            counts = {key: model.metadata[key] for key in COUNTED if key in model.metadata}
            backbones[name] = ModelInfo(name, 'backbone', model.family, model.config, counts)
    for name, family in FAMILIES.items():
        for cls, start in family.backbones.items():
            for arch in cls.arch_zoo:
                full = f'{start}-{arch}'
                # XCiT's classifiers name the patch too: xcit-t12-p16.
                if not any(f'{known}-'.startswith(f'{full}-') for known in backbones):
                    options = dict(type=cls.__name__, arch=arch)
                    backbones[full] = ModelInfo(full, 'backbone', name, None, {}, options)
    return list(backbones.values())


@cache
def _by_name(root: Path) -> Dict[str, ModelInfo]:
    """All models and backbones, and under the names of released weights what these fit."""
    released = {
        name.replace('_', '-'): ModelInfo(name, 'backbone', family, None, {}, published.backbone)
        for family, each in FAMILIES.items()
        for name, published in each.published.items()
    }
    return {**released, **{model.name: model for model in _backbones(root) + _models(root)}}


def _spelled(name: str) -> str:
    """A name as the model zoo has it, also of a backbone in timm's spelling: ``ravlt_tiny``."""
    if is_of_timm(name):
        return name
    known = _by_name(files_root())
    return name if name in known or name.replace('_', '-') not in known else name.replace('_', '-')


def _named(name: str) -> ModelInfo:
    """What is known of a model or backbone, also in timm's spelling.

    Raises:
        ValueError: If there is no such name. The message lists similar names.
    """
    known = _by_name(files_root())
    spelled = _spelled(name)
    if spelled not in known:
        near = near_names(name, list(known))
        raise ValueError(
            f'there is no model or backbone {name!r}; similar names are {near}, all are in '
            'list_models()'
        )
    return known[spelled]


def list_models(
    pattern: Union[str, Sequence[str]] = '*',
    task: Optional[str] = None,
    family: Optional[str] = None,
    exclude_filters: Union[str, Sequence[str]] = (),
) -> List[str]:
    """List the names of models and backbones, sorted as by timm: by letters, and numbers by value.

    :func:`create_backbone` builds each of the backbones, and :func:`get_model` each other model.

    Args:
        pattern: A pattern, or several. The name must match one of them. ``*``, ``?`` and ``[…]``
            work as in file names. A pattern without any of these matches if it is a part of the
            name. Case does not matter. Default: '*', all models.
        task: ``'classification'``, ``'detection'``, ``'segmentation'`` or ``'backbone'``. Default:
            None, all of them.
        family: The folder of the configs, such as ``'soft'``. Default: None, all families.
        exclude_filters: A pattern, or several. Names that match one are left out. Default: ().

    Raises:
        ValueError: If there is no such task or family.

    Examples:
        >>> from mmlaplace import list_models
        >>> list_models('tiny', task='backbone', family='mlla')
        ['mlla-tiny']
        >>> list_models('softpp-m*', task='backbone')
        ['softpp-medium', 'softpp-medium-nonorm', 'softpp-micro']
    """
    return [model.name for model in find_models(pattern, task, family, exclude_filters)]


def find_models(
    pattern: Union[str, Sequence[str]] = '*',
    task: Optional[str] = None,
    family: Optional[str] = None,
    exclude_filters: Union[str, Sequence[str]] = (),
) -> List[ModelInfo]:
    """As :func:`list_models`, with all that the metafiles say of the models."""
    models = read_models() + read_backbones()
    families = sorted({model.family for model in models})
    for name, value, known in (('task', task, TASKS), ('family', family, families)):
        if value is not None and value not in known:
            hint = did_you_mean(value, known)
            raise ValueError(f'{name} must be one of {tuple(known)}, got {value!r}{hint}')
    given = [exclude_filters] if isinstance(exclude_filters, str) else exclude_filters
    excluded = [pattern for pattern in given if pattern]  # timm's default '' excludes nothing
    chosen = [
        model
        for model in models
        if matches(model.name, pattern)
        and not matches(model.name, excluded)
        and task in (None, model.task)
        and family in (None, model.family)
    ]
    return sorted(chosen, key=lambda model: _natural_key(model.name))


def _natural_key(name: str) -> List[Union[str, int]]:
    """The parts of a name, with its numbers as such: ``8xb64`` comes before ``8xb128``."""
    return [int(part) if part.isdigit() else part for part in re.split(r'(\d+)', name)]


def matches(name: str, patterns: Union[str, Sequence[str]]) -> bool:
    """Whether a name matches one of the patterns, as :func:`list_models` defines it."""
    given = [patterns] if isinstance(patterns, str) else patterns
    wildcards = (p if set('*?[') & set(p) else f'*{p}*' for p in given)
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in wildcards)


def near_names(name: str, names: Sequence[str]) -> List[str]:
    """Three of the names that are most like a name or a pattern, or have a part most like it."""
    letters = re.sub(r'[][*?!]', '', name).lower()

    def likeness(known: str) -> float:
        starts = [match.end() for match in re.finditer('^|_', known)]
        parts = (known, *(known[start : start + len(letters)] for start in starts))
        return max(SequenceMatcher(None, letters, part).ratio() for part in parts)

    return sorted(names, key=lambda known: (-likeness(known), len(known)))[:3]


def get_config(name: str) -> Config:
    """Load the config of a model by its name, one of :func:`list_models` that is no backbone's.

    Raises:
        ValueError: If there is no such model. The message lists similar names.
    """
    models = {model.name: model for model in read_models()}
    if name not in models:
        near = near_names(name, list(models))
        raise ValueError(
            f'there is no model {name!r}; similar names are {near}, all are in list_models()'
        )
    return Config.fromfile(models[name].config)


def get_model(
    name: str,
    pretrained: Union[str, PathLike, bool, None] = None,
    backbone_only: bool = False,
    **backbone_options: Any,
) -> nn.Module:
    """Build a classifier, detector or segmentor by name, or its backbone alone.

    ``mmpretrain.get_model`` builds the classifiers. Therefore mmpretrain's inferencers accept them.

    Args:
        name: One of :func:`list_models`. That of a backbone is for :func:`create_backbone`.
        pretrained: True loads the weights that the authors released, from their address. Otherwise
            path or address of a checkpoint of the model, which :func:`load_weights` loads.
            Detectors, segmentors and ``backbone_only`` also accept a classifier's checkpoint, such
            as ``'mmlaplace://ravlt-tiny'``. Default: None, random weights, as with False.
        backbone_only: Whether to build the backbone alone, which needs no toolbox. Default: False.
        **backbone_options: Options of the backbone to change, such as ``drop_path_rate=0.0``.

    Raises:
        ValueError: If there is no such model, or the name is that of a backbone, the weights do not
            fit, or the authors have released none.
        FileNotFoundError: If they cannot be opened or downloaded.
        ImportError: If the model's toolbox is not installed, or if it needs mmcv's compiled ops
            and mmcv has none. The message gives the command that installs them.

    Examples:
        >>> from mmlaplace import get_model
        >>> name = 'laplacianformer-tiny_8xb128_in1k'
        >>> backbone = get_model(name, backbone_only=True, drop_path_rate=0.0)
        >>> type(backbone).__name__
        'LaplacianFormer'
    """
    if name not in {model.name for model in read_models()}:
        if not backbone_only:
            raise ValueError(_no_whole_model(name))
        return create_backbone(name, pretrained, **backbone_options)
    checkpoint = _checkpoint(name, pretrained, backbone_only)
    cfg = get_config(name)
    options = {**cfg.model.backbone, 'init_cfg': None, **backbone_options}
    cfg.model.backbone = ConfigDict(options)
    model = MODELS.build(cfg.model.backbone) if backbone_only else _build(cfg)
    if checkpoint is not None:
        load_weights(model, checkpoint)
    return model


def _no_whole_model(name: str) -> str:
    """Why there is no model with a head of a name, and what to call instead."""
    options_of(name)  # raises with similar names for one that is no backbone's
    spelled = _spelled(name)
    wholes = [model.name for model in read_models() if model.name.startswith(f'{spelled}_')]
    fix = f'create_backbone({name!r}) builds it'
    if wholes:
        fix += f', and get_model({wholes[0]!r}) a model with a head'
    return f'{name!r} is a backbone, which has no head: {fix}'


def options_of(name: str) -> Dict[str, Any]:
    """The ``type`` and the options by which :func:`create_backbone` builds a backbone.

    Raises:
        ValueError: If there is no such name. The message lists similar names.
    """
    if is_of_timm(name):
        return dict(backbone_of_timm(name), init_cfg=None)
    model = _named(name)
    options: Dict[str, Any] = dict(model.arch or Config.fromfile(model.config).model.backbone)
    options['init_cfg'] = None
    if model.task == 'backbone':  # of the classifier's settings, only those of the network itself
        for setting in OF_CLASSIFIER:
            options.pop(setting, None)
    return options


def create_backbone(
    name: str,
    pretrained: Union[str, PathLike, bool, None] = None,
    **backbone_options: Any,
) -> nn.Module:
    """Create a backbone by name, with initialised or pretrained weights. It needs no toolbox.

    Args:
        name: One of ``list_models(task='backbone')``, such as ``'softpp-tiny'``, gives the backbone
            with the maps of all stages and without stochastic depth. timm's spelling of it,
            ``'softpp_tiny'``, gives the same. The name of a model gives the backbone of its config,
            and that of released weights, such as ``'cswin-large-384'``, the backbone that they fit.
            So does timm's name, ``'timm://vit_small_patch16_dinov3'``.
        pretrained: True loads the weights that the authors released, from their address. Otherwise
            path or address of a checkpoint, of a backbone or of a whole model, which
            :func:`load_weights` loads. Default: None, random weights, as with False.
        **backbone_options: Options of the backbone to change, such as ``out_indices``,
            ``attn_cfg``, ``drop_path_rate`` or ``img_size``.

    Raises:
        ValueError: If there is no such name, the weights do not fit, or the authors have released
            none, and for an ``init_cfg`` beside ``pretrained``.
        FileNotFoundError: If they cannot be opened or downloaded.
        TypeError: If the backbone has no such option.

    Examples:
        >>> import torch
        >>> from mmlaplace import create_backbone
        >>> backbone = create_backbone('polaformer-pvtv2-b0', out_indices=(1, 3))
        >>> [tuple(x.shape) for x in backbone(torch.randn(1, 3, 64, 96))]
        [(1, 64, 8, 12), (1, 256, 2, 3)]
    """
    options = options_of(name)
    checkpoint = _checkpoint(_spelled(name), pretrained)
    if checkpoint is not None and 'init_cfg' in backbone_options:
        raise ValueError(
            f'pretrained={pretrained!r} takes the place of an init_cfg, and an init_cfg is given '
            'too; leave one of them out'
        )
    backbone = MODELS.build({**options, **backbone_options})
    initialise(backbone)
    if checkpoint is not None and any(weight.is_meta for weight in backbone.parameters()):
        raise ValueError(
            f'pretrained={pretrained!r} cannot fill a backbone on the meta device, which has no '
            'memory; leave it out and call load_state_dict(state_dict, assign=True), or create the '
            'backbone on another device'
        )
    if checkpoint is not None:
        load_weights(backbone, checkpoint)
    return backbone


def _checkpoint(name: str, pretrained: Any, backbone_only: bool = False) -> Any:
    """The checkpoint that ``pretrained`` names, if any."""
    if pretrained is True:
        address = released_weights(name, backbone_only)
        if not is_of_timm(address):
            released_place(address)  # raises, before a model without weights is built
        return address
    return None if pretrained is False else pretrained


def released_weights(name: str, backbone_only: bool = False) -> str:
    """The address ``mmlaplace://NAME`` of the weights that the authors of a model released.

    Whether there are any, :func:`load_weights` finds out. A file without a head is for backbones.

    Raises:
        ValueError: If it is a detector or segmentor of which there are none, or if there is no such
            name. The message lists similar names.
    """
    if is_of_timm(name):
        return name
    if name in DENSE:
        return address_of(name)
    model, name = _named(name), _spelled(name)
    if model.task not in ('classification', 'backbone'):
        raise ValueError(
            f'pretrained=True: no weights of the whole {name!r} are released; those of a '
            "classifier fill its backbone: pretrained='mmlaplace://NAME', with a NAME of "
            'python -m mmlaplace list --weights'
        )
    if model.task == 'backbone':  # the classifier's entry says which weights are published
        model = next((each for each in read_models() if each.config == model.config), model)
    published = model.metadata.get('Published as') or name.partition('_')[0]
    file = PUBLISHED.get(published)
    no_head = model.task == 'classification' and file and not (file.head or backbone_only)
    return address_of(name if no_head else published)  # of the former there is none


def import_toolbox(scope: str) -> None:
    """Import a toolbox, which registers all of its modules.

    Raises:
        ImportError: If it is not installed, or lacks mmcv's compiled ops that it needs.
    """
    require_toolbox(scope)
    importlib.import_module(f'{scope}.utils').register_all_modules(init_default_scope=False)


def build_model(cfg: Config) -> nn.Module:
    """Build the model of a config with random weights, in the scope of the config's toolbox.

    Raises:
        ImportError: If the toolbox is not installed, or lacks mmcv's compiled ops that it needs.
    """
    scope = cfg.default_scope
    import_toolbox(scope)
    cfg.model.setdefault('data_preprocessor', cfg.get('data_preprocessor'))
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(cfg.model)


def _build(cfg: Config) -> nn.Module:
    """Build the whole model of a config by its toolbox."""
    scope = cfg.default_scope
    try:
        require_toolbox(scope)
    except ImportError as error:
        raise ImportError(
            f'{error}; install that package, or set backbone_only=True, which does not need it'
        ) from error
    if scope == 'mmpretrain':
        return importlib.import_module(scope).get_model(cfg, pretrained=False)
    return build_model(cfg)
