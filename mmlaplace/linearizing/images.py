"""Images of a config of any toolbox, without their labels."""

from typing import Any, Mapping

import torch
from mmengine.config import Config
from mmengine.model import ImgDataPreprocessor

BATCH_SIZE = 8  # of a config that has a data set alone


def data_loader(cfg: Config, name: str) -> Config:
    """The dict of the data loader of a config's images for training.

    Args:
        cfg: The config, with a ``train_dataloader``, or a ``train_dataset`` alone.
        name: The config's name, for the message.

    Raises:
        ValueError: If it has neither.
    """
    if cfg.get('train_dataloader'):
        return cfg.train_dataloader
    if not cfg.get('train_dataset'):
        raise ValueError(
            f'{name} has no images: it has no train_dataloader and no train_dataset; name a config '
            'of mmpretrain, mmdet or mmseg with one of them by --data'
        )
    sampler = dict(type='DefaultSampler', shuffle=True)
    return Config(
        dict(batch_size=BATCH_SIZE, num_workers=2, sampler=sampler, dataset=cfg.train_dataset)
    )


class ImagesAlone(ImgDataPreprocessor):
    """Takes the images of a batch of any toolbox, and normalises them as another model's.

    Args:
        model: The dict of that model's ``data_preprocessor``, of which ``mean``, ``std``,
            ``bgr_to_rgb`` or ``to_rgb``, and ``pad_size_divisor`` are taken.

    Raises:
        ValueError: In the forward, for a batch without images of as many channels.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        super().__init__(
            mean=model.get('mean'),
            std=model.get('std'),
            bgr_to_rgb=bool(model.get('bgr_to_rgb') or model.get('to_rgb')),
            pad_size_divisor=model.get('pad_size_divisor', 1),
        )

    def forward(self, data: Any, training: bool = False) -> dict:
        """A batch with ``inputs`` to one with the images ``(B, C, H, W)`` alone."""
        images = data.get('inputs') if isinstance(data, dict) else None
        each = list(images) if isinstance(images, (list, tuple, torch.Tensor)) else []
        if not each or any(x.dim() != 3 or x.shape[0] != 3 for x in each):
            found = [tuple(x.shape) for x in each[:1]] or type(data).__name__
            raise ValueError(
                'the batches of the data have no images (3, H, W) as inputs, but '
                f'{found}; name a config of mmpretrain, mmdet or mmseg with colour images by --data'
            )
        return super().forward(dict(inputs=images), training)
