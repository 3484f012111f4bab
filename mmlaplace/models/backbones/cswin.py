"""CSWin: its host and its sizes."""

from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, Target, within
from ...checkpoints.dense import dense_models
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import BLOCK, HEAD
from ..layers import OverlapPatchEmbed, TransformerBlock
from ..layers.patch_embed import pad_to_multiple
from ..pyramid import MICRO, STRIDES, Family, PyramidBackbone, Stage, arch


class Stem(OverlapPatchEmbed):
    """A 7 x 7 convolution of stride 4 with two zeros at each border, and a norm.

    With ``ceil_mode``, images are first zero-padded to multiples of 4. Otherwise a side of S pixels
    becomes ⌊(S + 1) / 4⌋ tokens.
    """

    def __init__(
        self, in_channels: int, embed_dims: int, ceil_mode: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(in_channels, embed_dims, kernel_size=7, stride=4, **kwargs)
        self.projection.padding = (2, 2)
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        return super().forward(pad_to_multiple(x, 4) if self.ceil_mode else x)


class CSWinBlock(TransformerBlock):
    """A pre-norm block that gives its input to an attention with ``filters_from='residual'``."""

    gives_residual = True


def cswin(stripe_widths: Sequence[int] = (1, 2, 7), ceil_mode: bool = True) -> List[Stage]:
    """CSWin: attention in stripes, then on the whole map. Convolutions merge tokens.

    Args:
        stripe_widths: Widths of the stripes in the first three stages, in tokens. Default:
            (1, 2, 7); (1, 2, 12) are those of the authors at 384 x 384.
        ceil_mode: Whether images are padded to multiples of 4. Otherwise the first map has a row or
            column less if 4 leaves 1 or 2 pixels, as in the authors' code. Default: True.

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
    embeds = (partial(Stem, norm_cfg=norm, ceil_mode=ceil_mode), *[merge] * 3)
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
            block=dict(type=CSWinBlock),
        )
        for embed, stride, attn in zip(embeds, STRIDES, attns)
    ]


@MODELS.register_module()
class CSWin(PyramidBackbone):
    """CSWin: softmax in stripes of columns and of rows, a convolution of the values in each.

    A 7 x 7 convolution of stride 4 makes the tokens, and 3 x 3 convolutions merge them. Stripes are
    1, 2 and 7 tokens wide in the first three stages. The last stage has softmax on the whole map.
    Another attention in a stage is on the whole map too: ``attn_cfg=[dict(type='AgentAttention',
    qkv='qkv')] * 2 + [None] * 2`` is that of Agent-CSWin. Arguments are those of
    :class:`PyramidBackbone`, ``stripe_widths`` and ``ceil_mode``.

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


DOWNLOADS = 'https://github.com/microsoft/CSWin-Transformer/releases/download/v0.1.0'


def cswin_rows(linear: Optional[Rows] = None) -> Dict[str, Target]:
    """The rows of a CSWin, whose first two stages may have another attention, on the whole map."""
    block = {**BLOCK, 'qkv.': 'attn.qkv.', 'proj.': 'attn.proj.'}
    rows: Dict[str, Target] = {
        'stage1_conv_embed.0.': 'stages.0.patch_embed.projection.',
        'stage1_conv_embed.2.': 'stages.0.patch_embed.norm.',
        'merge{i}.conv.': 'stages.{i}.patch_embed.projection.',
        'merge{i}.norm.': 'stages.{i}.patch_embed.norm.',
        **within('stages.{i-1}.blocks.{j}.', 'stage{i}.{j}.', block),
        # Of both halves of the heads.
        'stage{i}.{j}.attns.{k}.get_v.': 'stages.{i-1}.blocks.{j}.attn.lepe.conv.',
        'norm.': 'norm3.',
        **HEAD,
    }
    for i in (1, 2):
        start = f'stages.{i - 1}.blocks.{{j}}.attn.'
        rows.update(within(start, f'stage{i}.{{j}}.attns.0.', linear or {}))
    return rows


def linear_maps(**attn_cfg: Any) -> List[Optional[Dict[str, Any]]]:
    """The ``attn_cfg`` of a CSWin with another attention in its first two stages."""
    return [attn_cfg] * 2 + [None] * 2


def linear_arch(size: str) -> Dict[str, tuple]:
    """The sizes of CSWin with other attentions, ``tiny``, ``small`` or ``base``."""
    dims = 96 if size == 'base' else 64
    heads = 4 if size == 'base' else 2
    return dict(
        embed_dims=tuple(dims * 2**i for i in range(4)),
        depths=(2, 4, 18, 1) if size == 'tiny' else (3, 6, 29, 2),
        num_heads=tuple(heads * 2**i for i in range(4)),
        ffn_ratios=(4,) * 4,
    )


# With SLAB, FLatten and InLine, V has a convolution besides their own.
SECOND = {'get_v.': 'second_lepe.conv.'}
IDENTIFYING = ('stage1_conv_embed.0.weight', 'stage1.0.attns.0.get_v.weight')
CSWIN_NAMES = NameTable(cswin_rows(), IDENTIFYING, averaged=True)
PUBLISHED = {
    **{
        f'cswin_{size}': PublishedModel(
            (CSWIN_NAMES,), dict(type='CSWin', arch=size), f'{DOWNLOADS}/cswin_{size}_224.pth'
        )
        for size in ('tiny', 'small', 'base', 'large')
    },
    **{
        f'cswin_{size}_384': PublishedModel(
            (CSWIN_NAMES,),
            dict(type='CSWin', arch=size, stripe_widths=(1, 2, 12), img_size=384),
            f'{DOWNLOADS}/cswin_{size}_384.pth',
        )
        for size in ('base', 'large')
    },
}
DENSE = dense_models(
    {
        'cswin-{}_upernet_8xb2-160k_ade20k-512x512': {
            size: size for size in ('tiny', 'small', 'base')
        }
    },
    'cswin_{}',
    CSWIN_NAMES.of_maps({'norm{i}.': 'norm{i-1}.'}),
    DOWNLOADS.replace('v0.1.0', 'v0.2.0') + '/upernet_cswin_{}.pth',
)
FAMILY = Family(
    {CSWin: 'cswin'},
    PUBLISHED,
    timm=dict(  # as the default_cfgs of models/cswin.py
        cswin=dict(paper_ids='arXiv:2107.00652', crop_pct=0.9),
        cswin_base_384=dict(crop_pct=1.0),
        cswin_large_384=dict(crop_pct=1.0),
    ),
    dense=DENSE,
    licence='MIT',
)
