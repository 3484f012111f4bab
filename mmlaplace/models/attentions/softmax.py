from typing import Tuple

import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from .base import QKVAttention


@MODELS.register_module()
class SoftmaxAttention(QKVAttention):
    r"""Scaled dot-product attention, the baseline on the same host.

    .. math:: \mathrm{softmax}(Q K^T / \sqrt{d}) V

    Runs PyTorch's ``scaled_dot_product_attention``: quadratic in the tokens, with no N x N matrix
    in memory where that has a fused kernel. Arguments as in :class:`QKVAttention`.
    """

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)
