"""MLLA: linear attention in the block of Mamba."""

from typing import Any, List, Tuple

import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule, Sequential
from mmengine.registry import MODELS
from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, within
from ...checkpoints.dense import dense_models
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import BLOCK, HEAD, MAP_NORMS
from ..layers import DepthwiseConv, TransformerBlock, map_to_tokens
from ..layers.feature_map import channels_last, shape_of_map
from ..layers.patch_embed import pad_to_multiple
from ..pyramid import MICRO, STRIDES, Family, PyramidBackbone, Stage, arch
from .flatten import CLOUD


def with_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> List[nn.Module]:
    """A convolution without a bias, and BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class MLLAStem(BaseModule):
    """Convolutions that embed patches of 4 x 4 pixels: one, two with a residual, two.

    All but the last are 3 x 3. Each has BatchNorm. ReLU follows the first of each group. A side of
    S pixels becomes ⌈S / 4⌉ tokens. Images are zero-padded to a multiple of 4.

    Args:
        in_channels: Channels of the image.
        embed_dims: Channels C of the tokens. Convolutions before the last have C/2, C/2, C/2, 4C.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.mlla import MLLAStem
        >>> tokens, hw_shape = MLLAStem(3, 64)(torch.randn(1, 3, 30, 50))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 104, 64]), (8, 13))
    """

    def __init__(self, in_channels: int, embed_dims: int) -> None:
        super().__init__()
        half, wide = embed_dims // 2, 4 * embed_dims
        self.first = Sequential(*with_norm(in_channels, half, 3, 2), nn.ReLU(inplace=True))
        self.residual = Sequential(
            *with_norm(half, half, 3), nn.ReLU(inplace=True), *with_norm(half, half, 3)
        )
        self.last = Sequential(
            *with_norm(half, wide, 3, 2), nn.ReLU(inplace=True), *with_norm(wide, embed_dims, 1)
        )

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = self.first(pad_to_multiple(channels_last(x), 4))  # (B, C/2, 2H', 2W')
        x = self.last(x + self.residual(x))  # (B, C, H', W')
        return map_to_tokens(x), shape_of_map(x)


class MLLADownsampling(BaseModule):
    """A 1 x 1 convolution to 4C channels, a depthwise one of stride 2, and a 1 x 1 one to C.

    ReLU follows the first two, BatchNorm the last. A side of S tokens becomes ⌈S / 2⌉. Maps are
    zero-padded to even sides, as in the authors' detectors.

    Args:
        in_channels: Channels of the map.
        embed_dims: Channels C of the tokens.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.mlla import MLLADownsampling
        >>> tokens, hw_shape = MLLADownsampling(64, 128)(torch.randn(1, 64, 8, 13))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 28, 128]), (4, 7))
    """

    def __init__(self, in_channels: int, embed_dims: int) -> None:
        super().__init__()
        wide = 4 * embed_dims
        self.layers = Sequential(
            nn.Conv2d(in_channels, wide, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(wide, wide, 3, stride=2, padding=1, groups=wide),
            nn.ReLU(inplace=True),
            nn.Conv2d(wide, embed_dims, 1),
            nn.BatchNorm2d(embed_dims),
        )

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = self.layers(pad_to_multiple(x, 2))  # (B, C, H', W')
        return map_to_tokens(x), shape_of_map(x)


class MLLABlock(TransformerBlock):
    r"""A block whose attention stands between linears and beside a gate, as in Mamba.

    With :math:`z = \mathrm{norm}(x)` and :math:`s = \mathrm{SiLU}`, the branch of the attention is

    .. math::
        \mathrm{Linear}\big(\mathrm{attention}(s(\mathrm{DWConv}(\mathrm{Linear}(z))))
        \odot s(\mathrm{Linear}(z))\big).

    Arguments are those of :class:`TransformerBlock`.

    Source: MLLA (arXiv 2405.16605).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.mlla import MLLABlock
        >>> attn_cfg = dict(
        ...     type='MLLAAttention', embed_dims=64, num_heads=2, input_resolution=(14, 14))
        >>> MLLABlock(64, attn_cfg)(torch.randn(1, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([1, 45, 64])
    """

    def __init__(self, embed_dims: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(embed_dims, *args, **kwargs)
        self.in_proj = nn.Linear(embed_dims, embed_dims)
        self.gate = nn.Linear(embed_dims, embed_dims)
        self.conv = DepthwiseConv(embed_dims, 3)
        self.out_proj = nn.Linear(embed_dims, embed_dims)

    def branches(self) -> list:
        (cpe, norm, _, scale), ffn = super().branches()
        return [(cpe, norm, self.gated_attention, scale), ffn]

    def gated_attention(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """The branch of the attention, ``(B, N, C) -> (B, N, C)``."""
        mixed = self.attn(F.silu(self.conv(self.in_proj(x), hw_shape)), hw_shape)
        return self.out_proj(mixed * F.silu(self.gate(x)))


def mlla() -> List[Stage]:
    """MLLA: convolutions embed patches, and blocks are those of Mamba, with convolutions of x."""
    norm = dict(type='LN', eps=1e-5)
    return [
        Stage(
            MLLAStem if stride == 4 else MLLADownsampling,
            stride,
            dict(type='MLLAAttention'),
            embed_norm=False,
            norm=norm,
            out_norm=norm,
            block=dict(type=MLLABlock, cpe_kernels=(3, 3)),
        )
        for stride in STRIDES
    ]


@MODELS.register_module()
class MLLA(PyramidBackbone):
    """MLLA (Mamba-like linear attention): a pyramid of linear attention in the block of Mamba.

    Convolutions with BatchNorm embed patches and halve the maps. A block adds a depthwise
    convolution to its tokens before the attention and before the FFN. The attention stands between
    two linears and beside a gate, see :class:`MLLABlock`. Positions are rotary. Arguments are those
    of :class:`PyramidBackbone`.

    Source: MLLA (arXiv 2405.16605).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import MLLA
        >>> maps = MLLA(arch='micro')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 96, 4, 6), (1, 128, 2, 3)]
    """

    host = staticmethod(mlla)
    arch_zoo = {
        'micro': MICRO,
        'tiny': arch((64, 128, 256, 512), (2, 4, 8, 4)),
        'small': arch((64, 128, 256, 512), (3, 6, 21, 6)),
        'base': arch((96, 192, 384, 768), (3, 6, 21, 6)),
    }


DOWNSAMPLING: Rows = {'0.conv.': '0.', '1.conv.': '2.', '2.conv.': '4.', '2.norm.': '5.'}
CONVOLUTION: Rows = {'conv.': '0.', 'norm.': '1.'}
AFTER_RELU: Rows = {'conv.': '3.', 'norm.': '4.'}
STEM: Rows = {
    **within('first.', 'conv1.', CONVOLUTION),
    **within('residual.', 'conv2.0.', CONVOLUTION),
    **within('residual.', 'conv2.1.', AFTER_RELU),
    **within('last.', 'conv3.0.', CONVOLUTION),
    **within('last.', 'conv3.1.', AFTER_RELU),
}
MLLA_BLOCK: Rows = {
    **BLOCK,
    'cpe1.': 'cpe1.conv.',
    'cpe2.': 'cpe2.conv.',
    'in_proj.': 'in_proj.',
    'act_proj.': 'gate.',
    'dwc.': 'conv.conv.',
    'out_proj.': 'out_proj.',
    'attn.qk.': 'attn.qkv.',
    'attn.lepe.': 'attn.lepe.conv.',
    'attn.rope.rotations': None,
}
NAMES = NameTable(
    {
        **within('stages.0.patch_embed.', 'patch_embed.', STEM),
        # In the authors' code, it belongs to the stage before it.
        **within('stages.{i+1}.patch_embed.layers.', 'layers.{i}.downsample.conv.', DOWNSAMPLING),
        **within('stages.{i}.blocks.{j}.', 'layers.{i}.blocks.{j}.', MLLA_BLOCK),
        'norm.': 'norm3.',
        **HEAD,
    },
    identifying=('layers.0.blocks.0.attn.qk.weight', 'layers.0.blocks.0.act_proj.weight'),
)
PUBLISHED = {
    f'mlla_{size}': PublishedModel(
        (NAMES,), dict(type='MLLA', arch=size), f'{CLOUD}/{digits}/?dl=1'
    )
    for size, digits in dict(
        tiny='7a19712877cb4242889c', small='0e5d0b1409d540aaa80c', base='91c85c5a1061496d8796'
    ).items()
}
FILES = {
    'mask-rcnn_mlla-{}_fpn_ms-1x_coco': dict(
        tiny='ce362e868fb5491ca55c', small='3d29bec850e0441a8842', base='826278b01bed4df2bbc1'
    ),
    'mask-rcnn_mlla-{}_fpn_ms-3x_coco': dict(
        tiny='339d49127565432fb912', small='b501c886982e4c7f926d'
    ),
    'mlla-{}_upernet_8xb2-160k_ade20k-512x512': dict(base='41760d4a531a4ffc9cbf'),
}
DENSE = dense_models(FILES, 'mlla_{}', NAMES.of_maps(MAP_NORMS), CLOUD + '/{}/?dl=1')
FAMILY = Family(
    {MLLA: 'mlla'},
    PUBLISHED,
    # Evaluated as data/build.py does: the centre of the shorter side, by timm's defaults.
    timm=dict(mlla=dict(paper_ids='arXiv:2405.16605', first_conv='first.0')),
    dense=DENSE,
    licence='MIT',
)
