"""CSWin: its host and its sizes."""

from functools import partial
from typing import Any, Callable, List, Sequence, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from ..layers import OverlapPatchEmbed, TransformerBlock
from ..layers.patch_embed import pad_to_multiple
from .base import PyramidBackbone
from .hosts import MICRO, STRIDES, arch
from .stage import Stage


class Stem(OverlapPatchEmbed):
    """A 7 x 7 convolution of stride 4 with two zeros at each border, and a norm.

    Images are first zero-padded to multiples of 4.
    """

    def __init__(self, in_channels: int, embed_dims: int, **kwargs: Any) -> None:
        super().__init__(in_channels, embed_dims, kernel_size=7, stride=4, **kwargs)
        self.projection.padding = (2, 2)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        return super().forward(pad_to_multiple(x, 4))


class CSWinBlock(TransformerBlock):
    """A pre-norm block that gives its input to an attention with ``filters_from='residual'``."""

    def output_of(
        self, branch: Callable, normed: Tensor, x: Tensor, hw_shape: Tuple[int, int]
    ) -> Tensor:
        if getattr(branch, 'filters_from', None) == 'residual':
            return branch(normed, hw_shape, residual=x)
        return super().output_of(branch, normed, x, hw_shape)


def cswin(stripe_widths: Sequence[int] = (1, 2, 7)) -> List[Stage]:
    """CSWin: attention in stripes, then on the whole map. Convolutions merge tokens.

    Args:
        stripe_widths: Widths of the stripes in the first three stages, in tokens. Default:
            (1, 2, 7); (1, 2, 12) are those of the authors at 384 x 384.

    Raises:
        ValueError: For another number of widths. The last stage has none.
    """
    if not isinstance(stripe_widths, (list, tuple)) or len(stripe_widths) != 3:
        raise ValueError(
            'stripe_widths must be three widths, such as (1, 2, 7), as the last stage has softmax '
            f'on the whole map, got {stripe_widths!r}'
        )
    norm = dict(type='LN', eps=1e-5)
    merge = partial(OverlapPatchEmbed, kernel_size=3, stride=2, norm_cfg=norm)
    attns = [dict(type='CrossShapedAttention', stripe_width=width) for width in stripe_widths]
    attns.append(dict(type='SoftmaxAttention'))
    return [
        Stage(
            embed,
            stride,
            attn,
            dict(lepe_kernel=3),
            norm=norm,
            out_norm=norm,
            block_class=CSWinBlock,
        )
        for embed, stride, attn in zip((partial(Stem, norm_cfg=norm), *[merge] * 3), STRIDES, attns)
    ]


@MODELS.register_module()
class CSWin(PyramidBackbone):
    """CSWin: softmax in stripes of columns and of rows, a convolution of the values in each.

    A 7 x 7 convolution of stride 4 makes the tokens, and 3 x 3 convolutions merge them. Stripes are
    1, 2 and 7 tokens wide in the first three stages. The last stage has softmax on the whole map.
    Another attention in a stage is on the whole map too: ``attn_cfg=[dict(type='AgentAttention',
    qkv='qkv')] * 2 + [None] * 2`` is that of Agent-CSWin. Arguments are those of
    :class:`PyramidBackbone`, and ``stripe_widths``.

    Source: CSWin Transformer (arXiv 2107.00652).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import CSWin
        >>> maps = CSWin(arch='micro')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 96, 4, 6), (1, 128, 2, 3)]
    """

    host = staticmethod(cswin)
    arch_zoo = {
        'micro': MICRO,
        'tiny': arch((64, 128, 256, 512), (1, 2, 21, 1)),
        'small': arch((64, 128, 256, 512), (2, 4, 32, 2)),
        'base': arch((96, 192, 384, 768), (2, 4, 32, 2), (4, 8, 16, 32)),
        'large': arch((144, 288, 576, 1152), (2, 4, 32, 2), (6, 12, 24, 24)),
    }
