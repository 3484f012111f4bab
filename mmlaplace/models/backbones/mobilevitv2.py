"""MobileViTv2: inverted residuals, and separable attention on half of the channels."""

from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch.nn as nn
from mmengine.model import BaseModule, Sequential
from mmengine.registry import MODELS
from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, Target, within
from ...checkpoints.cvnets import CONV, deeplabv3, pspnet, ssd
from ...checkpoints.dense import DenseModel, dense_models
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import linear
from ..layers import TransformerBlock, map_to_tokens
from ..layers.build import build_token_norm
from ..layers.conv_layers import BATCH_NORM, ConvLayer, inverted_residual
from ..layers.feature_map import channels_last, shape_of_map
from ..pyramid import STRIDES, Family, PyramidBackbone, Stage, arch
from .efficientvit import EfficientViTLocalBlock

GROUP_NORM = dict(type='GN', num_groups=1)
SILU = dict(type='SiLU')


class MobileViTv2Embed(BaseModule):
    """An inverted residual that halves a map, and what leads from it to the blocks of a stage.

    A side of S pixels becomes ⌈S / stride⌉ tokens, or half as many with a stem.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels C of the stage.
        stem: Whether a 3 x 3 convolution of stride 2 to C/4 channels, and an inverted residual to
            C/2 channels come first. Default: False.
        local: Whether a depthwise 3 x 3 convolution and a linear to C/2 channels follow. Default:
            False.
        norm_cfg: Config of the norms. Default: ``dict(type='BN')``.
        stride: Of the last inverted residual. Default: 2.
        dilation: Of the convolution that follows it. With ``stride=1``, the inverted residual has
            half of it. Default: 1.

    Source: MobileViTv2 (arXiv 2206.02680).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.mobilevitv2 import MobileViTv2Embed
        >>> tokens, hw_shape = MobileViTv2Embed(16, 32, local=True)(torch.randn(1, 16, 7, 9))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 20, 16]), (4, 5))
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        stem: bool = False,
        local: bool = False,
        norm_cfg: Optional[dict] = None,
        stride: int = 2,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        layers: Dict[str, Any] = dict(norm_cfg=norm_cfg or BATCH_NORM, act_cfg=SILU)
        self.stem = Sequential()
        if stem:
            first, in_channels = in_channels, embed_dims // 2
            self.stem.append(ConvLayer(first, embed_dims // 4, 3, stride=2, **layers))
            self.stem.append(inverted_residual(embed_dims // 4, in_channels, 2, **layers))
        before = dilation if stride > 1 else dilation // 2
        self.layers = inverted_residual(
            in_channels, embed_dims, 2, stride=stride, dilation=before, **layers
        )
        self.local: nn.Module = nn.Identity()
        self.proj: nn.Module = nn.Identity()
        if local:
            layers.update(groups=embed_dims, dilation=dilation)
            self.local = ConvLayer(embed_dims, embed_dims, 3, **layers)
            self.proj = nn.Linear(embed_dims, embed_dims // 2, bias=False)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C or C/2), (H', W')`` with ``N = H' * W'``."""
        x = self.local(self.layers(self.stem(channels_last(x))))
        return self.proj(map_to_tokens(x)), shape_of_map(x)


def half_width_block(embed_dims: int, attn_cfg: dict, norm_cfg: dict, **block: Any) -> nn.Module:
    """A block of half the stage's channels, whose norms are GroupNorms of one group.

    ``norm_cfg``, which the stage gives to every block, is for the BatchNorms around the blocks.
    """
    half = embed_dims // 2
    return TransformerBlock(half, dict(attn_cfg, embed_dims=half), norm_cfg=GROUP_NORM, **block)


class MobileViTv2End(BaseModule):
    """A norm of half the channels, a linear to all of them, and a norm: ``norm(W norm(x))``.

    Args:
        embed_dims: Channels C of the stage. The blocks have C/2.
        norm_cfg: Config of the last norm. The first is a GroupNorm of one group. Default:
            ``dict(type='BN')``.

    Source: MobileViTv2 (arXiv 2206.02680).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.mobilevitv2 import MobileViTv2End
        >>> MobileViTv2End(32)(torch.randn(1, 5 * 9, 16)).shape
        torch.Size([1, 45, 32])
    """

    def __init__(self, embed_dims: int, norm_cfg: Optional[dict] = None) -> None:
        super().__init__()
        self.norm1 = build_token_norm(GROUP_NORM, embed_dims // 2)
        self.proj = nn.Linear(embed_dims // 2, embed_dims, bias=False)
        self.norm2 = build_token_norm(norm_cfg or BATCH_NORM, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C/2) -> (B, N, C)``."""
        return self.norm2(self.proj(self.norm1(x)))


def mobilevitv2(output_stride: int = 32) -> List[Stage]:
    """MobileViTv2: inverted residuals in the first stage, transformer blocks in the others.

    The blocks of these have half of the stage's channels. Their norms have statistics of a whole
    map, and their attention sums over one token of each patch of 2 x 2.

    Args:
        output_stride: Pixels of an image for a token of the last map, 32, 16 or 8. With 16, the
            last stage does not halve the map, and its convolutions are dilated, as in DeepLab.
            With 8, the last two stages. Default: 32.

    Raises:
        ValueError: For another ``output_stride``.
    """
    if output_stride not in (8, 16, 32):
        raise ValueError(f'output_stride must be 8, 16 or 32, got {output_stride!r}')
    first, *others = STRIDES
    stages = [
        Stage(
            partial(MobileViTv2Embed, stem=True),
            first,
            None,
            norm=BATCH_NORM,
            out_norm=None,
            block=dict(type=EfficientViTLocalBlock, ffn_cfg=dict(kind='inverted', act_cfg=SILU)),
        )
    ]
    pixels = first  # of a side of a token
    dilation = 1
    for stride in others:
        if pixels == output_stride:
            stride = 1
            dilation *= 2
        pixels *= stride
        stages.append(
            Stage(
                partial(MobileViTv2Embed, local=True, stride=stride, dilation=dilation),
                stride,
                dict(type='SeparableAttention', patch_size=2),
                norm=BATCH_NORM,
                out_norm=None,
                block=dict(type=half_width_block, ffn_cfg=dict(act_cfg=SILU)),
                end=MobileViTv2End,
            )
        )
    return stages


def _arch(width: float) -> dict:
    """The arch of a width, with heads of 32 channels where these divide the blocks' channels."""
    dims = tuple(int(width * channels) for channels in (128, 256, 384, 512))
    num_heads = [1]  # of the first stage, which has no attention
    for channels in dims[1:]:
        heads = channels // 2 // 32
        while channels // 2 % heads:
            heads -= 1
        num_heads.append(heads)
    return arch(dims, (1, 2, 4, 3), tuple(num_heads), (2, 2, 2, 2))


@MODELS.register_module()
class MobileViTv2(PyramidBackbone):
    """MobileViTv2: inverted residuals, and :class:`SeparableAttention` in the last three stages.

    A 3 x 3 convolution and an inverted residual are the stem. Another one, of stride 2, begins each
    stage. The last three stages have transformer blocks on half of their channels: a depthwise
    convolution and a linear lead to them, and a norm and a linear back. The norms in the blocks are
    GroupNorms of one group. All others are BatchNorms, and ``norm_cfg=dict(type='SyncBN')`` sets
    these. The separable attention has no heads, so ``num_heads`` counts those of other attentions.
    Arguments are those of :class:`PyramidBackbone` and of the host
    :func:`~mmlaplace.models.backbones.mobilevitv2.mobilevitv2`. The archs are named by their width,
    such as ``'100'``.

    The authors resize a map whose sides are no multiples of 2 before its blocks, and do not resize
    it back. Here it keeps its size.

    Source: MobileViTv2 (arXiv 2206.02680).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import MobileViTv2
        >>> maps = MobileViTv2(arch='050')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 64, 16, 24), (1, 128, 8, 12), (1, 192, 4, 6), (1, 256, 2, 3)]
    """

    host = staticmethod(mobilevitv2)
    default_arch = '100'
    arch_zoo = {f'{width:03}': _arch(width / 100) for width in range(50, 201, 25)}


# By the names of their tables: of the norm of a convolution, of the three convolutions of an
# inverted residual, and of the parts of a block, a stage's start and a stage's end.
TIMM_CONV: Rows = {'conv.': 'conv.', 'bn.': 'norm.'}
TIMM_BLOCK: Dict[str, Target] = {
    'norm1.': 'norm1.norm.',
    'attn.qkv_proj.': ('attn.qkv.', linear),
    'attn.out_proj.': ('attn.proj.', linear),
    'norm2.': 'norm2.norm.',
    'mlp.fc1.': ('ffn.layers.0.', linear),
    'mlp.fc2.': ('ffn.layers.3.', linear),
}
AUTHORS_BLOCK: Dict[str, Target] = {
    'pre_norm_attn.0.': 'norm1.norm.',
    'pre_norm_attn.1.qkv_proj.block.conv.': ('attn.qkv.', linear),
    'pre_norm_attn.1.out_proj.block.conv.': ('attn.proj.', linear),
    'pre_norm_ffn.0.': 'norm2.norm.',
    'pre_norm_ffn.1.block.conv.': ('ffn.layers.0.', linear),
    'pre_norm_ffn.3.block.conv.': ('ffn.layers.3.', linear),
}


def _inverted(own: str, released: str, names: Sequence[str], conv: Rows) -> Dict[str, Target]:
    """The rows of an inverted residual, whose three convolutions have these names."""
    rows: Dict[str, Target] = {}
    for i, name in enumerate(names):
        rows.update(within(f'{own}{i}.', f'{released}{name}.', conv))
    return rows


def _rows(stem: str, stage: str, first: int, names: Sequence[str], conv: Rows) -> Dict[str, Target]:
    """The rows of the stem and of the inverted residuals.

    Args:
        stem: Start of the names of the first convolution.
        stage: Start of the names of a stage, whose number is ``{}``.
        first: Number of the authors' first stage, whose one residual belongs to the stem here.
        names: Of the three convolutions of an inverted residual.
        conv: Rows of a convolution and its norm.
    """
    embed = 'stages.{}.patch_embed.'
    rows = within(f'{embed.format(0)}stem.0.', stem, conv)
    residual = stage.format(first) + '0.'
    rows.update(_inverted(f'{embed.format(0)}stem.1.', residual, names, conv))
    for i in range(4):
        residual = stage.format(first + 1 + i) + '0.'
        rows.update(_inverted(f'{embed.format(i)}layers.', residual, names, conv))
    block = 'stages.0.blocks.0.ffn.layers.'
    rows.update(_inverted(block, stage.format(first + 1) + '1.', names, conv))
    return rows


def _timm_rows() -> Dict[str, Target]:
    rows = _rows('stem.', 'stages.{}.', 0, ('conv1_1x1', 'conv2_kxk', 'conv3_1x1'), TIMM_CONV)
    for i in range(1, 4):
        own = f'stages.{i}.'
        timm = f'stages.{i + 1}.1.'
        rows.update(within(f'{own}patch_embed.local.', f'{timm}conv_kxk.', TIMM_CONV))
        rows[f'{timm}conv_1x1.'] = (f'{own}patch_embed.proj.', linear)
        rows.update(within(f'{own}blocks.{{j}}.', f'{timm}transformer.{{j}}.', TIMM_BLOCK))
        rows[f'{timm}norm.'] = f'{own}norm.norm1.norm.'
        rows[f'{timm}conv_proj.conv.'] = (f'{own}norm.proj.', linear)
        rows[f'{timm}conv_proj.bn.'] = f'{own}norm.norm2.norm.'
    return rows


def _authors_rows() -> Dict[str, Target]:
    convs = ('block.exp_1x1', 'block.conv_3x3', 'block.red_1x1')
    rows = _rows('conv_1.', 'layer_{}.', 1, convs, CONV)
    for i, depth in ((1, 2), (2, 4), (3, 3)):  # the norm after the blocks has the next number
        own = f'stages.{i}.'
        authors = f'layer_{i + 2}.1.'
        rows.update(within(f'{own}patch_embed.local.', f'{authors}local_rep.0.', CONV))
        rows[f'{authors}local_rep.1.block.conv.'] = (f'{own}patch_embed.proj.', linear)
        rows.update(within(f'{own}blocks.{{j}}.', f'{authors}global_rep.{{j}}.', AUTHORS_BLOCK))
        rows[f'{authors}global_rep.{depth}.'] = f'{own}norm.norm1.norm.'
        rows[f'{authors}conv_proj.block.conv.'] = (f'{own}norm.proj.', linear)
        rows[f'{authors}conv_proj.block.norm.'] = f'{own}norm.norm2.norm.'
    return rows


AUTHORS_ROWS = _authors_rows()
TIMM_NAMES = NameTable(
    {**_timm_rows(), 'head.fc.': 'head.fc.'},
    identifying=('stem.conv.weight', 'stages.2.1.transformer.0.attn.qkv_proj.weight'),
)
AUTHORS_NAMES = NameTable(
    {**AUTHORS_ROWS, 'classifier.1.': 'head.fc.'},
    identifying=(
        'conv_1.block.conv.weight',
        'layer_3.1.global_rep.0.pre_norm_attn.1.qkv_proj.block.conv.weight',
    ),
)
DEEPLABV3_NAMES = deeplabv3(AUTHORS_ROWS)
PSPNET_NAMES = pspnet(AUTHORS_ROWS)
SSD_NAMES = ssd(AUTHORS_ROWS)

CVNETS = 'https://docs-assets.developer.apple.com/ml-research/models/cvnets-v2'
DOWNLOADS = f'{CVNETS}/classification/mobilevitv2'


def _published(width: int, side: int, data: str = 'imagenet1k') -> PublishedModel:
    """The classifier of a width in %, for images of this side, trained on these data."""
    backbone: Dict[str, Any] = dict(type='MobileViTv2', arch=f'{width:03}', img_size=side)
    address = f'{DOWNLOADS}/{data}/{side}x{side}/mobilevitv2-{width / 100}.pt'
    return PublishedModel((AUTHORS_NAMES, TIMM_NAMES), backbone, address)


PUBLISHED = {
    'mobilevitv2_050': _published(50, 256),
    'mobilevitv2_050_384': _published(50, 384),
    'mobilevitv2_075': _published(75, 256),
    'mobilevitv2_075_384': _published(75, 384),
    'mobilevitv2_100': _published(100, 256),
    'mobilevitv2_100_384': _published(100, 384),
    'mobilevitv2_125': _published(125, 256),
    'mobilevitv2_125_384': _published(125, 384),
    'mobilevitv2_150': _published(150, 256),
    'mobilevitv2_150_384': _published(150, 384),
    'mobilevitv2_175': _published(175, 256),
    'mobilevitv2_175_384': _published(175, 384),
    'mobilevitv2_200': _published(200, 256),
    'mobilevitv2_200_384': _published(200, 384),
    'mobilevitv2_150_21kto1k': _published(150, 256, 'imagenet21k_to_1k'),
    'mobilevitv2_150_384_21kto1k': _published(150, 384, 'imagenet21k_to_1k'),
    'mobilevitv2_175_21kto1k': _published(175, 256, 'imagenet21k_to_1k'),
    'mobilevitv2_175_384_21kto1k': _published(175, 384, 'imagenet21k_to_1k'),
    'mobilevitv2_200_21kto1k': _published(200, 256, 'imagenet21k_to_1k'),
    'mobilevitv2_200_384_21kto1k': _published(200, 384, 'imagenet21k_to_1k'),
}


def _dense(
    config: str, names: NameTable, file: str, widths: Sequence[int]
) -> Dict[str, DenseModel]:
    """The detectors or segmentors of these widths in %."""
    return dense_models(
        {config: {f'{width:03}': str(width / 100) for width in widths}},
        'mobilevitv2_{}',
        names,
        f'{CVNETS}/{file}-{{}}.pt',
    )


ADE20K = 'segmentation/ade20k'
VOC = 'segmentation/pascalvoc'
DENSE = {
    **_dense(
        'mobilevitv2-{}_deeplabv3_4xb4-152k_ade20k-512x512',
        DEEPLABV3_NAMES,
        f'{ADE20K}/mobilevitv2/deeplabv3-mobilevitv2',
        range(50, 201, 25),
    ),
    **_dense(
        'mobilevitv2-{}_pspnet_4xb4-152k_ade20k-512x512',
        PSPNET_NAMES,
        f'{ADE20K}/mobilevitv2/pspnet-mobilevitv2',
        range(50, 176, 25),
    ),
    **_dense(
        'mobilevitv2-{}_deeplabv3_4xb32-4k_voc12aug-512x512',
        DEEPLABV3_NAMES,
        f'{VOC}/mobilevitv2/deeplabv3-mobilevitv2',
        (50, 100, 125, 150),
    ),
    **_dense(
        'mobilevitv2-{}_pspnet_4xb32-4k_voc12aug-512x512',
        PSPNET_NAMES,
        f'{VOC}/mobilevitv2/pspnet-mobilevitv2',
        range(50, 151, 25),
    ),
    **_dense(
        'ssdlite_mobilevitv2-{}_4xb32-200e_coco',
        SSD_NAMES,
        'detection/mobilevitv2/coco-ssd-mobilevitv2',
        range(50, 201, 25),
    ),
}
FAMILY = Family({MobileViTv2: 'mobilevitv2'}, PUBLISHED, dense=DENSE, licence='Apple sample code')
