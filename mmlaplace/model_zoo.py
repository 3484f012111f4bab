"""The model zoo: list the configs of mmlaplace, and build models from them by name."""

import importlib
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import torch.nn as nn
import yaml
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope

from .checkpoints import load_weights
from .toolboxes import TOOLBOXES, require_toolbox


class ModelInfo(NamedTuple):
    """One entry of a metafile.

    Attributes:
        name: Name of the config, without ``.py``.
        task: ``'classification'``, ``'detection'`` or ``'segmentation'``.
        family: The folder of the config, such as ``'laplacianformer'``.
        config: The config file.
        metadata: The ``Metadata`` of the entry: parameters, MACs and published scores.
    """

    name: str
    task: str
    family: str
    config: Path
    metadata: Dict[str, Any]


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


def read_models() -> List[ModelInfo]:
    """All models of the metafiles that ``model-index.yml`` lists."""
    root, models = files_root(), []
    for metafile in yaml.safe_load((root / 'model-index.yml').read_text())['Import']:
        _, task, family, _ = Path(metafile).parts
        for entry in yaml.safe_load((root / metafile).read_text())['Models']:
            config = root / entry['Config']
            models.append(ModelInfo(entry['Name'], task, family, config, entry['Metadata']))
    return models


def list_models(
    pattern: Union[str, Sequence[str]] = '*',
    task: Optional[str] = None,
    family: Optional[str] = None,
    exclude_filters: Union[str, Sequence[str]] = (),
) -> List[str]:
    """List the names of the models, sorted.

    Args:
        pattern: A pattern, or several. The name must match one of them. ``*``, ``?`` and ``[…]``
            work as in file names. A pattern without any of these matches if it is a part of the
            name. Case does not matter. Default: '*', all models.
        task: ``'classification'``, ``'detection'`` or ``'segmentation'``. Default: None, all tasks.
        family: The folder of the configs, such as ``'soft'``. Default: None, all families.
        exclude_filters: A pattern, or several. Names that match one are left out. Default: ().

    Raises:
        ValueError: If there is no such task or family.

    Examples:
        >>> from mmlaplace import list_models
        >>> list_models('tiny', task='classification', family='laplacianformer')
        ['laplacianformer-tiny_8xb128_in1k']
    """
    models = read_models()
    families = sorted({model.family for model in models})
    for name, value, known in (('task', task, TOOLBOXES), ('family', family, families)):
        if value is not None and value not in known:
            raise ValueError(f'{name} must be one of {tuple(known)}, got {value!r}')
    return sorted(
        model.name
        for model in models
        if _matches(model.name, pattern)
        and not _matches(model.name, exclude_filters)
        and task in (None, model.task)
        and family in (None, model.family)
    )


def _matches(name: str, patterns: Union[str, Sequence[str]]) -> bool:
    """Whether a name matches one of the patterns, as :func:`list_models` defines it."""
    given = [patterns] if isinstance(patterns, str) else patterns
    wildcards = (p if set('*?[') & set(p) else f'*{p}*' for p in given)
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in wildcards)


def get_config(name: str) -> Config:
    """Load the config of a model by its name, one of :func:`list_models`.

    Raises:
        ValueError: If there is no such model. The message lists similar names.
    """
    models = {model.name: model for model in read_models()}
    if name not in models:
        near = [known for known in models if name.split('_')[0] in known] or list(models)
        raise ValueError(
            f'there is no model {name!r}; near are {near[:5]}, all are in list_models()'
        )
    return Config.fromfile(models[name].config)


def get_model(
    name: str,
    pretrained: Union[str, PathLike, bool, None] = None,
    backbone_only: bool = False,
    **backbone_options: Any,
) -> nn.Module:
    """Build a model by name: a classifier, detector or segmentor, or its backbone alone.

    ``mmpretrain.get_model`` builds the classifiers. Therefore mmpretrain's inferencers accept them.

    Args:
        name: One of :func:`list_models`.
        pretrained: Path or address of a checkpoint of the model, which :func:`load_weights` loads.
            Detectors, segmentors and ``backbone_only`` also accept a classifier's checkpoint. True
            raises an error, because no weights are published yet. Default: None, random weights,
            as with False.
        backbone_only: Whether to build the backbone alone, which needs no toolbox. Default: False.
        **backbone_options: Options of the backbone to change, such as ``drop_path_rate=0.0``.

    Raises:
        ValueError: If there is no such model, if the weights do not fit, or for
            ``pretrained=True``.
        ImportError: If the model's toolbox is not installed, or if it needs mmcv's compiled ops
            and mmcv has none. The message gives the command that installs them.

    Examples:
        >>> from mmlaplace import get_model
        >>> name = 'laplacianformer-tiny_8xb128_in1k'
        >>> backbone = get_model(name, backbone_only=True, drop_path_rate=0.0)
        >>> type(backbone).__name__
        'LaplacianFormer'
    """
    if pretrained is True:
        raise ValueError(
            f'there are no published weights of {name!r} yet, so pretrained=True has nothing to '
            "load: train it and give pretrained='work_dirs/…/epoch_300.pth', or another path or "
            'address of a checkpoint; pretrained=False builds random weights'
        )
    cfg = get_config(name)
    cfg.model.backbone = ConfigDict(dict(cfg.model.backbone, init_cfg=None, **backbone_options))
    if backbone_only:
        model = MODELS.build(cfg.model.backbone)
    else:
        model = _build(cfg)
    if pretrained is not None and pretrained is not False:
        load_weights(model, pretrained)
    return model


def build_model(cfg: Config) -> nn.Module:
    """Build the model of a config with random weights, in the scope of the config's toolbox.

    Raises:
        ImportError: If the toolbox is not installed, or lacks mmcv's compiled ops that it needs.
    """
    scope = cfg.default_scope
    require_toolbox(scope)
    importlib.import_module(f'{scope}.utils').register_all_modules(init_default_scope=False)
    cfg.model.setdefault('data_preprocessor', cfg.get('data_preprocessor'))
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(cfg.model)


def _build(cfg: Config) -> nn.Module:
    """Build the whole model of a config by its toolbox."""
    scope = cfg.default_scope
    try:
        require_toolbox(scope)
    except ImportError as error:
        raise ImportError(f'{error}; the backbone alone comes by backbone_only=True') from error
    if scope == 'mmpretrain':
        return importlib.import_module(scope).get_model(cfg, pretrained=False)
    return build_model(cfg)
