"""Losses of segmentors that mmseg has with a fault."""

from typing import Optional, Sequence

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

__all__ = ['WeightedCrossEntropy']


@MODELS.register_module()
class WeightedCrossEntropy(nn.Module):
    r"""The cross entropy of pixels with a weight for each class, over the pixels that count.

    .. math:: \frac{\sum_i w_{y_i} \, (-\log p_{i, y_i})}{\sum_i w_{y_i}}

    It is fp32, and 0 where no pixel counts. It is mmseg's ``CrossEntropyLoss`` with
    ``class_weight``, which stops at a pixel without a label in the upstream mmsegmentation 1.2.2.

    Args:
        class_weight: The weights w, one for each class.
        loss_weight: Factor of the loss. Default: 1.
        loss_name: Name of the loss in a log. Only names with ``loss`` are added up. Default:
            ``'loss_ce'``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import WeightedCrossEntropy
        >>> labels = torch.tensor([[[0, 1, 255]]])  # 255 has no label
        >>> WeightedCrossEntropy([0.1, 1.0])(torch.zeros(1, 2, 1, 3), labels)
        tensor(0.6931)
    """

    def __init__(
        self,
        class_weight: Sequence[float],
        loss_weight: float = 1.0,
        loss_name: str = 'loss_ce',
    ) -> None:
        super().__init__()
        self.class_weight, self.loss_weight = list(class_weight), loss_weight
        self.loss_name = loss_name

    def forward(
        self,
        cls_score: Tensor,
        label: Tensor,
        weight: Optional[Tensor] = None,
        ignore_index: int = 255,
    ) -> Tensor:
        """The loss of logits ``(B, classes, H, W)`` for labels ``(B, H, W)``.

        Args:
            cls_score: The logits.
            label: The labels, from 0 to ``classes - 1``, or ``ignore_index``.
            weight: None, which mmseg's heads give without a sampler.
            ignore_index: The label of pixels that do not count. Default: 255.

        Raises:
            ValueError: If there are weights of pixels.
        """
        if weight is not None:
            raise ValueError(
                'WeightedCrossEntropy takes no weights of pixels; leave the sampler out'
            )
        cls_score = cls_score.float()
        balance = cls_score.new_tensor(self.class_weight)
        counted = balance[label[label != ignore_index]].sum()
        loss = F.cross_entropy(
            cls_score, label, balance, ignore_index=ignore_index, reduction='sum'
        )
        return self.loss_weight * loss / counted.clamp(min=torch.finfo(counted.dtype).tiny)
