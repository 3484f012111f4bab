"""The score of a trained model on some of the images that its config validates with."""

import io
import logging
import math
from contextlib import contextmanager, redirect_stdout
from typing import Any, Dict, Iterator

import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.logging import MMLogger
from mmengine.registry import DATASETS, DefaultScope
from mmengine.runner import Runner
from torch.utils.data import Subset

from ..engine.first_checks.leaves import evenly

LESS_IS_BETTER = ('loss', 'error')  # in the name of a metric


@contextmanager
def without_tables() -> Iterator[None]:
    """A context in which metrics print no tables and log none."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


class Scorer:
    """Gives the score of a model by its own head, on a part of the images for validation.

    The images lie evenly in the data set of ``val_dataloader``. A higher score is better: the sign
    of a metric with ``loss`` or ``error`` in its name is turned.

    Args:
        cfg: The config of a whole model, with ``val_dataloader`` and ``val_evaluator``.
        metric: Name of a value that the evaluator gives, such as ``accuracy/top1``,
            ``coco/bbox_mAP`` or ``mIoU``.
        images: Largest number of images. Default: 200.

    Attributes:
        images: The number of images that are scored.

    Raises:
        ValueError: If the config validates nothing. When it is called: if the evaluator does not
            give the metric, or finds no labels.
    """

    def __init__(self, cfg: Config, metric: str, images: int = 200) -> None:
        if not cfg.get('val_dataloader') or not cfg.get('val_evaluator'):
            raise ValueError(
                f'{cfg.filename} has no val_dataloader and val_evaluator, which give {metric}; add '
                'them, or choose without a metric'
            )
        loader = cfg.val_dataloader.to_dict()
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            dataset = DATASETS.build(loader['dataset'])
            if hasattr(dataset, 'full_init'):
                dataset.full_init()
            chosen = evenly(len(dataset), images)
            loader.update(dataset=Subset(dataset, chosen))
            self.loader = Runner.build_dataloader(loader)
            self.evaluator = Evaluator(cfg.val_evaluator)
        self.evaluator.dataset_meta = getattr(dataset, 'metainfo', None)
        for one in self.evaluator.metrics:
            if hasattr(one, 'img_ids'):  # or COCO's would miss the boxes of all other images
                one.img_ids = [dataset.get_data_info(index)['img_id'] for index in chosen]
        self.metric, self.images = metric, len(chosen)
        less = any(word in metric.lower() for word in LESS_IS_BETTER)
        self.sign = -1 if less else 1

    @torch.no_grad()
    def __call__(self, model: Any) -> float:
        """The score of a model of the config's kind, in eval mode, on the device of its weights."""
        model.eval()
        with without_tables():
            found = self._evaluated(model)
        if self.metric not in found:
            raise ValueError(
                f'the evaluator gives no {self.metric!r}, but {", ".join(sorted(found))}'
            )
        score = float(found[self.metric])
        if not math.isfinite(score) or score < 0:  # COCO's is -1
            raise ValueError(
                f'{self.metric} is {score} on the {self.images} images, as it counts no '
                'labels there; name data with labels in val_dataloader, or choose without a metric'
            )
        return self.sign * score

    def _evaluated(self, model: Any) -> Dict[str, float]:
        try:
            for batch in self.loader:
                samples = model.val_step(batch)
                self.evaluator.process(data_samples=samples, data_batch=batch)
            return self.evaluator.evaluate(self.images)
        except (KeyError, AttributeError) as error:
            raise ValueError(
                f'the evaluator found no labels ({type(error).__name__}: {error}) in the data of '
                'val_dataloader; name data with labels, or choose without a metric'
            ) from error
