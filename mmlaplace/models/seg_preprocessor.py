"""A data preprocessor of mmseg. ``mmlaplace`` imports this after ``mmseg.models``."""

from typing import Any, Dict

from mmengine.registry import MODELS
from mmseg.models.data_preprocessor import SegDataPreProcessor

from mmlaplace.ops.backend import ceil_div

from .valid_parts import set_valid_shapes

__all__ = ['ValidPartsSegDataPreProcessor']


@MODELS.register_module()
class ValidPartsSegDataPreProcessor(SegDataPreProcessor):
    """mmseg's ``SegDataPreProcessor``, which tells backbones the valid part of each image.

    Backbones with ``mask_padding=True`` leave the rest of the batch out. In training, images that
    are smaller than the crop are padded to it. Their valid part is what they would be padded to in
    a test: their sides, rounded up to multiples of ``test_cfg['size_divisor']``, which is 1 by
    default. In a test all images of a batch have one size, and are valid as a whole.

    Arguments are those of mmseg's.

    Examples:
        >>> import torch
        >>> from mmseg.structures import SegDataSample
        >>> from mmlaplace.models.seg_preprocessor import ValidPartsSegDataPreProcessor
        >>> from mmlaplace.models.valid_parts import valid_shapes
        >>> images = [torch.zeros(3, 40, 64), torch.zeros(3, 64, 64)]
        >>> data = dict(inputs=images, data_samples=[SegDataSample(), SegDataSample()])
        >>> preprocess = ValidPartsSegDataPreProcessor(size=(64, 64))
        >>> valid_shapes(preprocess(data, training=True)['inputs'])
        [(40, 64), (64, 64)]
    """

    def forward(self, data: dict, training: bool = False) -> Dict[str, Any]:
        """The batch and its data samples, as mmseg's."""
        divisor = (self.test_cfg or {}).get('size_divisor') or 1
        shapes = [
            [ceil_div(side, divisor) * divisor for side in x.shape[1:]] for x in data['inputs']
        ]
        out = super().forward(data, training)
        most = out['inputs'].shape[-2:]
        if not training:
            shapes = [most] * len(shapes)
        set_valid_shapes(out['inputs'], [[min(*sides) for sides in zip(x, most)] for x in shapes])
        return out
