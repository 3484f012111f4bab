"""The toolboxes' own inferencers of images, which read images as the config says."""

from importlib import import_module
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch.nn as nn
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.dataset import default_collate as collated
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope

from ..checkpoints import read_dataset_meta
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


def class_names(cfg: Config, checkpoint: str, count: Optional[int] = None) -> List[str]:
    """The names of a model's classes, by their labels, for the metadata of its file.

    Args:
        cfg: The config of the model.
        checkpoint: The weights, beside which a run writes the names.
        count: Number of the model's classes. Default: None, any.

    Returns:
        The names, or an empty list if there are none, or if they are not as many as the classes.
    """
    names = list(names_and_colours(cfg, checkpoint).get('classes') or ())
    return names if count in (None, len(names)) else []


def number_of_classes(model: Any) -> Optional[int]:
    """Number of the classes of a classifier, detector or segmentor, or None if it does not say."""
    for path in ('decode_head', 'roi_head.bbox_head', 'bbox_head', 'head'):
        part = model
        for name in path.split('.'):
            part = getattr(part, name, None)
        if part is not None:
            return getattr(part, 'num_classes', None)
    return None


def names_and_colours(cfg: Config, checkpoint: str) -> Dict[str, Any]:
    """``classes`` and ``palette`` of a checkpoint, or else of the data set of its config."""
    dataset = cfg.test_dataloader.dataset
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        kind = DATASETS.get(dataset.type) if isinstance(dataset.type, str) else dataset.type
    known = getattr(kind, 'METAINFO', {})
    meta = {**known, **dataset.get('metainfo', {}), **read_dataset_meta(checkpoint)}
    return {name: meta[name] for name in ('classes', 'palette') if meta.get(name)}
