"""ViT³, test-time training on DeiT, and H-ViT³, its pyramid."""

from typing import Any, Dict, List, Tuple

import torch.nn as nn
from mmengine.model import BaseModule, Sequential
from mmengine.registry import MODELS
from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, within
from ...checkpoints.dense import dense_models
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import BLOCK, HEAD, MAP_NORMS, first
from ..layers import map_to_tokens
from ..layers.feature_map import channels_last, shape_of_map
from ..layers.patch_embed import pad_to_multiple
from ..pyramid import MICRO, STRIDES, Family, PyramidBackbone, Stage, arch
from .deit import convolved_vit_rows
from .flatten import CLOUD
from .mlla import DOWNSAMPLING, MLLADownsampling, with_norm


class HViT3Stem(BaseModule):
    """Four 3 x 3 convolutions and one of 1 x 1, which embed patches of 4 x 4 pixels.

    Each has BatchNorm, and all but the last ReLU. They are the layers of MLLA's stem without its
    residual. A side of S pixels becomes ⌈S / 4⌉ tokens. Images are zero-padded to a multiple of 4.

    Args:
        in_channels: Channels of the image.
        embed_dims: Channels C of the tokens. Convolutions before the last have C/2, C/2, C/2, 4C.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.vit3 import HViT3Stem
        >>> tokens, hw_shape = HViT3Stem(3, 64)(torch.randn(1, 3, 30, 50))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 104, 64]), (8, 13))
    """

    def __init__(self, in_channels: int, embed_dims: int) -> None:
        super().__init__()
        half, wide = embed_dims // 2, 4 * embed_dims
        layers: List[nn.Module] = []
        for inputs, outputs, stride in (
            (in_channels, half, 2),
            (half, half, 1),
            (half, half, 1),
            (half, wide, 2),
        ):
            layers += [*with_norm(inputs, outputs, 3, stride), nn.ReLU(inplace=True)]
        self.layers = Sequential(*layers, *with_norm(wide, embed_dims, 1))

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = self.layers(pad_to_multiple(channels_last(x), 4))  # (B, C, H', W')
        return map_to_tokens(x), shape_of_map(x)


def h_vit3() -> List[Stage]:
    """H-ViT³: convolutions embed patches and come before attentions and into FFNs."""
    norm = dict(type='LN', eps=1e-5)
    ffn = dict(dwconv_kernel=3, dwconv_residual=True, act_twice=True)
    return [
        Stage(
            HViT3Stem if stride == 4 else MLLADownsampling,
            stride,
            dict(type='TTTAttention', rope=True),
            embed_norm=False,
            norm=norm,
            out_norm=norm,
            block=dict(cpe_kernels=(3, 0), ffn_cfg=ffn),
        )
        for stride in STRIDES
    ]


@MODELS.register_module()
class HViT3(PyramidBackbone):
    """H-ViT³: a pyramid whose attentions train a small model on each image.

    Convolutions with BatchNorm embed patches and halve the maps. A block begins with a depthwise
    3 x 3 convolution, whose output is added to the tokens. The FFN has one on its hidden channels,
    which is a residual between two GELUs. Positions are rotary.

    Returned maps have a LayerNorm, as in the authors' detectors. The authors' classifiers have a
    BatchNorm: ``out_norms=dict(type='BN')``. A checkpoint of such a classifier loads with both.

    Arguments are those of :class:`PyramidBackbone`.

    Source: ViT³ (arXiv 2512.01643).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import HViT3
        >>> maps = HViT3(arch='micro')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 96, 4, 6), (1, 128, 2, 3)]
    """

    host = staticmethod(h_vit3)
    arch_zoo = {
        'micro': MICRO,
        'tiny': arch((64, 128, 320, 512), (1, 3, 9, 4)),
        'small': arch((64, 128, 320, 512), (2, 6, 18, 8)),
        'base': arch((96, 192, 448, 640), (2, 6, 18, 8)),
    }


def of_taps(filters: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """Depthwise filters without their axis of one input channel."""
    return filters.squeeze(1)


TTT: Rows = {
    'qkv.': 'qkv.',
    'proj.': 'proj.',
    'w1': ('w1', first),
    'w2': ('w2', first),
    'w3': ('w3', of_taps),
}
VIT3 = NameTable(convolved_vit_rows(TTT), identifying=('blocks.0.cpe.weight', 'blocks.0.attn.w1'))
# Of the stem, each convolution and norm, with a ReLU behind all but the last.
STEM: Dict[str, Any] = {
    f'{i}.{part}.': f'{3 * i + place}.'
    for i in range(5)
    for place, part in enumerate(('conv', 'norm'))
}
H_VIT3_BLOCK: Rows = {
    **BLOCK,
    'cpe.': 'cpe1.conv.',
    **within('attn.', 'attn.', TTT),
    'mlp.dwc.': 'ffn.dwconv.conv.',
    'rope.rotations': None,
}
H_VIT3 = NameTable(
    {
        **within('stages.0.patch_embed.layers.', 'patch_embed.conv.', STEM),
        # In the authors' code, it belongs to the stage before it.
        **within('stages.{i+1}.patch_embed.layers.', 'layers.{i}.downsample.conv.', DOWNSAMPLING),
        **within('stages.{i}.blocks.{j}.', 'layers.{i}.blocks.{j}.', H_VIT3_BLOCK),
        'norm.': 'norm3.norm.',
        **HEAD,
    },
    identifying=('patch_embed.conv.0.conv.weight', 'layers.0.blocks.0.attn.w1'),
)


def _vit3(arch: Any) -> Dict[str, Any]:
    attn_cfg = dict(type='TTTAttention')
    return dict(type='ViT', arch=arch, with_cls_token=False, cpe_kernel=3, attn_cfg=attn_cfg)


# DeiT's tiny has three heads.
TINY = dict(embed_dims=(192,), depths=(12,), num_heads=(6,), ffn_ratios=(4,))
PUBLISHED = {
    **{
        f'vit3_{size}': PublishedModel((VIT3,), _vit3(arch), f'{CLOUD}/{digits}/?dl=1')
        for size, arch, digits in (
            ('tiny', TINY, 'e12d1bd1c20c4e06a2da'),
            ('small', 'small', '4ab59ca54b474dff9b70'),
            ('base', 'base', 'c9e9bb09f85d449ab8cf'),
        )
    },
    **{
        f'h_vit3_{size}': PublishedModel(
            (H_VIT3,),
            dict(type='HViT3', arch=size, out_norms=dict(type='BN')),
            f'{CLOUD}/{digits}/?dl=1',
        )
        for size, digits in dict(
            tiny='f0c7c73ceabe49b7b161', small='3eeab8621a7f43929a87', base='1d0d7fb840254275b29d'
        ).items()
    },
}
FILES = {
    'mask-rcnn_h-vit3-{}_fpn_ms-1x_coco': dict(
        tiny='a00315bbfd504edebfb0', small='b42d36b21a5e44d0b266', base='4a641d087ca248e8804b'
    ),
    'mask-rcnn_h-vit3-{}_fpn_ms-3x_coco': dict(
        tiny='8c39ef3d7d144a81b986', small='faa577d9a25140ef94d1', base='e9c1aef780d949489408'
    ),
    'h-vit3-{}_upernet_8xb2-160k_ade20k-512x512': dict(
        tiny='df39e508ae5b49c59cca', small='71c786dd7e8046b5ab43', base='6bd6db157003462f9fed'
    ),
}
OF_MAPS = H_VIT3.of_maps({**MAP_NORMS, 'layers.{i}.blocks.{j}.attn.rope.rotations': None})
FAMILY = Family(
    {HViT3: 'h-vit3'},
    PUBLISHED,
    # Evaluated as data/build.py does: the centre of the shorter side, by timm's defaults.
    timm=dict(
        vit3=dict(paper_ids='arXiv:2512.01643'),
        h_vit3=dict(paper_ids='arXiv:2512.01643', first_conv='layers.0'),
    ),
    dense=dense_models(FILES, 'h_vit3_{}', OF_MAPS, CLOUD + '/{}/?dl=1'),
    licence='MIT',
)
