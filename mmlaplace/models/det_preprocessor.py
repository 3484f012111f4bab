"""A data preprocessor of mmdet. ``mmlaplace`` imports this after ``mmdet.models``."""

from typing import Any, Dict

from mmdet.models.data_preprocessors import DetDataPreprocessor
from mmengine.registry import MODELS

from .valid_parts import set_valid_shapes

__all__ = ['ValidPartsDetDataPreprocessor']


@MODELS.register_module()
class ValidPartsDetDataPreprocessor(DetDataPreprocessor):
    """mmdet's ``DetDataPreprocessor``, which tells backbones the valid part of each image.

    Backbones with ``mask_padding=True`` leave the rest of the batch out. The valid part of an image
    is what the image would be padded to if it were alone: its sides, rounded up to multiples of
    ``pad_size_divisor``. So a detector gets the same maps for an image in training as in a test of
    single images. Padding by a transform ``Pad`` of the pipeline is a part of the image here.

    Arguments are those of mmdet's.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.det_preprocessor import ValidPartsDetDataPreprocessor
        >>> from mmlaplace.models.valid_parts import valid_shapes
        >>> images = [torch.zeros(3, 60, 90), torch.zeros(3, 64, 128)]
        >>> preprocess = ValidPartsDetDataPreprocessor(pad_size_divisor=32)
        >>> batch = preprocess(dict(inputs=images, data_samples=None))['inputs']
        >>> batch.shape, valid_shapes(batch)
        (torch.Size([2, 3, 64, 128]), [(64, 96), (64, 128)])
    """

    def forward(self, data: dict, training: bool = False) -> Dict[str, Any]:
        """The batch and its data samples, as mmdet's."""
        shapes = self._get_pad_shape(data)
        out = super().forward(data, training)
        if out['data_samples'] is not None:  # augmentations of the batch may have resized it
            shapes = [sample.pad_shape for sample in out['data_samples']]
        set_valid_shapes(out['inputs'], shapes)
        return out
