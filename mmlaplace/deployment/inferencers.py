"""The toolboxes' own inferencers of images, which read images as the config says."""

from importlib import import_module
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch.nn as nn
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.dataset import default_collate as collated
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope

from ..checkpoints import PUBLISHED, read_dataset_meta
from ..models.families import licence_of_backbone
from .detections import stages_of
from .toolbox_pipeline import LOADER, test_pipeline_of, type_of


def inferencer_of_classifier(
    cfg: Config, model: Any, device: str = 'cpu', classes: Optional[Sequence[str]] = None
) -> Any:
    """mmpretrain's inferencer, for a model that is built.

    mmpretrain's own reads every image in colour. This one reads it by the ``LoadImageFromFile`` of
    the config's test pipeline, so that grey images and images of many bands have their channels.

    Args:
        cfg: The config of the model.
        model: The model.
        device: Where it runs. Default: 'cpu'.
        classes: The names of the classes. Default: None, those that the model has.
    """
    from mmpretrain import ImageClassificationInferencer

    class ReadsAsConfigured(ImageClassificationInferencer):
        def _init_pipeline(self, cfg: Any) -> Any:
            return Compose([TRANSFORMS.build(step) for step in test_pipeline_of(cfg)])

        def preprocess(self, inputs: List[str], batch_size: int = 1) -> Iterator[Any]:
            packed = (self.pipeline(dict(img_path=path)) for path in inputs)
            yield from map(collated, self._get_chunk_data(packed, batch_size))

    model._config = cfg
    begins_with_loader = type_of(test_pipeline_of(cfg)[0]) == LOADER
    kind = ReadsAsConfigured if begins_with_loader else ImageClassificationInferencer
    return kind(model, device=device, classes=classes)


def inferencer_of(cfg: Config, model: nn.Module) -> Any:
    """The toolbox's own inferencer of images, for a model that is built."""
    if cfg.default_scope == 'mmpretrain':
        return inferencer_of_classifier(cfg, model)
    apis = import_module(f'{cfg.default_scope}.apis')
    base: Any = apis.DetInferencer if cfg.default_scope == 'mmdet' else apis.MMSegInferencer

    class OfModel(base):
        def _init_model(self, cfg: Any, weights: Any, device: str = 'cpu') -> nn.Module:
            whole: Any = model
            whole.dataset_meta = getattr(model, 'dataset_meta', None) or dict(classes=())
            return whole

    return OfModel(cfg, device='cpu')


def names_of(cfg: Config, checkpoint: str, model: Any) -> Dict[str, Any]:
    """What the metadata of a model's file name: its classes, their colours and a licence.

    Args:
        cfg: The config of the model.
        checkpoint: The weights, beside which a run writes the names.
        model: The classifier, detector or segmentor.

    Returns:
        ``classes``, their names by their labels, and ``palette``, their colours ``[red, green,
        blue]`` from 0 to 255. Each is an empty list if it is not known, or is not as long as the
        classes of the model. ``licence`` is that of the repository of the backbone's authors, see
        :func:`licence_of`.
    """
    count = number_of_classes(model)
    known = names_and_colours(cfg, checkpoint)
    names = list(known.get('classes') or ())
    colours = [[int(part) for part in colour] for colour in known.get('palette') or ()]
    return dict(
        classes=names if count in (None, len(names)) else [],
        palette=colours if len(colours) == (len(names) if count is None else count) else [],
        licence=licence_of(cfg.get('model', {}).get('backbone', {}), type(model.backbone)),
    )


# Of a backbone's config, what changes no layer, or only the numbers of layers and channels.
OF_NO_AUTHOR = ('arch', 'img_size', 'out_type', 'out_indices', 'init_cfg', 'drop_path_rate')


def licence_of(backbone: Dict[str, Any], cls: type) -> str:
    """The licence of the authors whose released backbones are like one.

    Several authors share a class: Swin's is also that of agent attention. So the other options tell
    them apart.

    Args:
        backbone: The config of the backbone.
        cls: Its class.

    Returns:
        ``'none'`` if the repository has no licence, and an empty string if the licence is not
        known, as for an attention that nobody released in this backbone.
    """

    def layers(config: Dict[str, Any]) -> Dict[str, Any]:
        return {key: value for key, value in config.items() if key not in OF_NO_AUTHOR}

    known = {
        model.licence
        for model in PUBLISHED.values()
        if layers(dict(model.backbone)) == layers(dict(backbone))
    }
    if len(known) == 1:
        return known.pop()
    is_shared = any(model.backbone['type'] == cls.__name__ for model in PUBLISHED.values())
    return '' if is_shared or 'attn_cfg' in backbone else licence_of_backbone(cls)


def number_of_classes(model: Any) -> Optional[int]:
    """Number of the classes of a classifier, detector or segmentor, or None if it does not say."""
    for path in ('decode_head', 'roi_head.bbox_head', 'bbox_head', 'head'):
        part = model
        for name in path.split('.'):
            part = getattr(part, name, None)
        if part is not None:
            return getattr(stages_of(part)[-1], 'num_classes', None)
    return None


def names_and_colours(cfg: Config, checkpoint: str) -> Dict[str, Any]:
    """``classes`` and ``palette`` of a checkpoint, or else of the data set of its config."""
    dataset = cfg.test_dataloader.dataset
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        kind = DATASETS.get(dataset.type) if isinstance(dataset.type, str) else dataset.type
    known = getattr(kind, 'METAINFO', {})
    meta = {**known, **dataset.get('metainfo', {}), **read_dataset_meta(checkpoint)}
    return {name: meta[name] for name in ('classes', 'palette') if meta.get(name)}
