"""XCiT: cross-covariance attention, local patch interaction, and class attention at the end."""

from functools import partial
from math import ceil, floor, pi
from typing import Any, Collection, Dict, List, Optional, Sequence, Set, Tuple, Union

import torch
import torch.nn as nn
from mmengine.model import BaseModule, ModuleList, Sequential
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, wide_dtype

from ...checkpoints.conversion import NameTable, Rows, within
from ...checkpoints.dense import DenseModel
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import BLOCK, HEAD
from ..layers import feature_map, map_to_tokens, tokens_to_map
from ..layers.class_attention import ClassAttention
from ..layers.feature_map import channels_last, shape_of_map
from ..layers.local_patch import XCABlock
from ..layers.tables import computed_once
from ..pyramid import Family, PyramidBackbone, Stage, arch, arguments

PATCH_SIZES = (16, 8)
STRIDES_OF_MAPS = (4, 8, 16, 32)  # of a pyramid
WAVES = 16  # of a side


class XCiTStem(BaseModule):
    """3 x 3 convolutions of stride 2 with BatchNorm, and GELU between them.

    A side of S pixels becomes ⌈S / p⌉ tokens. Each convolution has twice the channels of the one
    before.

    Args:
        in_channels: Channels of the image.
        embed_dims: Channels C of the tokens.
        patch_size: Side p of a patch, a power of 2. Default: 16.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.xcit import XCiTStem
        >>> tokens, hw_shape = XCiTStem(3, 64)(torch.randn(1, 3, 60, 100))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 28, 64]), (4, 7))
    """

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int = 16) -> None:
        super().__init__()
        self.layers = Sequential()
        halvings = patch_size.bit_length() - 1
        for later in reversed(range(halvings)):
            channels = embed_dims // 2**later
            conv = nn.Conv2d(in_channels, channels, 3, stride=2, padding=1, bias=False)
            self.layers.extend([conv, nn.BatchNorm2d(channels)])
            if later:
                self.layers.append(nn.GELU())
            in_channels = channels

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = self.layers(channels_last(x))  # (B, C, H', W')
        return map_to_tokens(x), shape_of_map(x)


class FourierPositions(BaseModule):
    r"""Add a 1 x 1 convolution of sines and cosines of the row and the column to each token.

    Row i of H has the sines and cosines of :math:`2 \pi i \, 10000^{-j / 16} / H`, with i from 1
    and j from 0 to 15. So has a column. No parameter depends on the size of the map. Waves are at
    least fp32.

    Args:
        embed_dims: Channels C.
        drop_rate: Dropout rate of the sums. Default: 0.

    Source: XCiT (arXiv 2106.09681).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.xcit import FourierPositions
        >>> FourierPositions(64)(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    def __init__(self, embed_dims: int, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.projection = nn.Conv2d(4 * WAVES, embed_dims, 1)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        with no_autocast(x.device):
            waves = computed_once(waves_of_map, *hw_shape, wide_dtype(x), like=x)
        waves = self.projection(waves.to(self.projection.weight.dtype))
        return self.drop(x + map_to_tokens(waves).to(x.dtype))


def _positions(embed_dims: int, resolution: tuple, drop_rate: float) -> FourierPositions:
    return FourierPositions(embed_dims, drop_rate)


def waves_of_map(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The waves of each row and of each column, ``(1, 64, H, W)``."""
    like = torch.empty(0, dtype=dtype, device=device)
    rows = _waves(height, like)[:, None].expand(height, width, 2 * WAVES)
    columns = _waves(width, like)[None].expand(height, width, 2 * WAVES)
    return torch.cat([rows, columns], dim=-1).permute(2, 0, 1)[None]


def _waves(count: int, like: Tensor) -> Tensor:
    """Sine and cosine beside each other, for each wave of a side of tokens: ``(count, 32)``."""
    like_it: Dict[str, Any] = dict(dtype=like.dtype, device=like.device)
    positions = torch.arange(1, count + 1, **like_it) / (count + 1e-6) * (2 * pi)
    periods = 1e4 ** (torch.arange(WAVES, **like_it) / WAVES)
    angles = positions[:, None] / periods
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def rescalings(embed_dims: int, patch_size: int, ceil_mode: bool = True) -> ModuleList:
    """What brings four maps of a patch size to the strides 4, 8, 16 and 32.

    Transposed convolutions enlarge maps, and max pooling reduces them, as in the authors'
    detectors.
    """
    up = partial(nn.ConvTranspose2d, embed_dims, embed_dims, 2, stride=2)
    down = partial(nn.MaxPool2d, ceil_mode=ceil_mode)
    if patch_size == 8:
        return ModuleList([up(), nn.Identity(), down(2), down(4)])
    larger = Sequential(up(), nn.BatchNorm2d(embed_dims), nn.GELU(), up())
    return ModuleList([larger, up(), nn.Identity(), down(2)])


def xcit(patch_size: int = 16, layer_scale: float = 1.0) -> List[Stage]:
    """XCiT: one stage of patches, Fourier positions, and blocks with local patch interaction.

    Args:
        patch_size: Side of a patch, in pixels: 16 or 8. Default: 16.
        layer_scale: Value of the layer scales at the start. The authors take 1e-5 for the sizes of
            24 blocks. Default: 1.

    Raises:
        ValueError: For another patch size.
    """
    if patch_size not in PATCH_SIZES:
        raise ValueError(f'patch_size must be one of {PATCH_SIZES}, got {patch_size!r}')
    return [
        Stage(
            partial(XCiTStem, patch_size=patch_size),
            patch_size,
            dict(type='XCAttention'),
            position=dict(type=_positions),
            embed_norm=False,
            out_norm=None,
            block=dict(type=XCABlock, layer_scale=layer_scale),
        )
    ]


@MODELS.register_module()
class XCiTBackbone(PyramidBackbone):
    """XCiT: cross-covariance attention, in which channels attend to channels. One stage.

    It has its name because mmpretrain has a backbone ``XCiT``. Convolutions embed patches of 16 or
    8 pixels, and positions are sines of the row and column. Blocks are :class:`XCABlock`. Returned
    maps have no norm, as in the authors' detectors. With ``out_type='cls_token'`` a class token
    attends to the last map in two layers (:class:`ClassAttention`), which else are not built.
    Arguments are those of :class:`PyramidBackbone`, ``patch_size``, ``layer_scale``, and

    Args:
        arch: As in :class:`PyramidBackbone`.
        norm_tokens: Whether class attention norms all tokens, see :class:`ClassAttentionLayer`.
            Default: all archs but ``n12``, as in the authors' code.
        pyramid_blocks: Numbers of four blocks, the last of which is the last block. Their maps are
            rescaled to the strides 4, 8, 16 and 32 for images whose sides 32 divides. The authors'
            detectors take ``(3, 5, 7, 11)`` of 12 blocks and ``(7, 11, 15, 23)`` of 24. Default:
            None, the map of the last block alone.
        ceil_mode: Whether max pooling rounds sides up. The authors' rounds them down. It matters
            for images whose sides 32 does not divide. Default: True.

    Raises:
        ValueError: For other ``pyramid_blocks``, or with ``out_type='cls_token'`` or ``out_norms``.

    Source: XCiT (arXiv 2106.09681).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import XCiTBackbone
        >>> images = torch.randn(1, 3, 64, 96)
        >>> XCiTBackbone('micro', out_type='cls_token')(images)[0].shape
        torch.Size([1, 128])
        >>> maps = XCiTBackbone('micro', pyramid_blocks=(0, 1, 2, 3))(images)
        >>> [tuple(x.shape) for x in maps]
        [(1, 128, 16, 24), (1, 128, 8, 12), (1, 128, 4, 6), (1, 128, 2, 3)]
    """

    host = staticmethod(xcit)
    class_layers = True
    default_arch = 't12'
    arch_zoo = {
        'micro': arch((128,), (4,)),
        'n12': arch((128,), (12,), (4,)),
        't12': arch((192,), (12,), (4,)),
        't24': arch((192,), (24,), (4,)),
        's12': arch((384,), (12,), (8,)),
        's24': arch((384,), (24,), (8,)),
        'm24': arch((512,), (24,), (8,)),
        'l24': arch((768,), (24,), (16,)),
    }

    def __init__(
        self,
        arch: Union[str, dict, None] = None,
        *args: Any,
        norm_tokens: Optional[bool] = None,
        pyramid_blocks: Optional[Sequence[int]] = None,
        ceil_mode: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(arch, *args, **kwargs)
        sizes = arguments.parse_arch(type(self), arch, 1)
        dims, depth, heads, ffn_ratio = (sizes[key][0] for key in arguments.ARCH_KEYS)
        if self.out_type == 'cls_token':
            keys = ('norm_cfg', 'act_cfg', 'drop_rate')
            given: Dict[str, Any] = {key: kwargs[key] for key in keys if key in kwargs}
            given['norm_tokens'] = arch != 'n12' if norm_tokens is None else norm_tokens
            # In every pyramid and in checkpoints, what the returned tokens pass is norm0.
            self.norm0 = ClassAttention(
                dims, heads, ffn_ratio, layer_scale=kwargs.get('layer_scale', 1.0), **given
            )
        self.pyramid_blocks: Tuple[int, ...] = ()
        self.pyramid = None
        if pyramid_blocks is not None:
            is_list = isinstance(pyramid_blocks, (list, tuple, range))
            self.pyramid_blocks = blocks = tuple(pyramid_blocks) if is_list else ()
            rising = sorted({*blocks, -1, depth - 1}) == [-1, *blocks]
            if len(blocks) != 4 or not rising or getattr(self, 'norm0', None) is not None:
                raise ValueError(
                    'pyramid_blocks must be four blocks in rising order, the last of them '
                    f"{depth - 1}, with out_type='featmap' and no out_norms, got {pyramid_blocks}"
                    f' with out_type={self.out_type!r} and out_norms={kwargs.get("out_norms")}'
                )
            self.ceil_mode = ceil_mode
            self.pyramid = rescalings(dims, self.stage_strides[0], ceil_mode)
            self.least_side = self.least_side if ceil_mode else 32
        self._freeze_stages()

    @property
    def out_channels(self) -> Tuple[int, ...]:
        """Those of the pyramid's maps, or of the only stage."""
        count = len(self.pyramid_blocks)
        return super().out_channels if self.pyramid is None else (self.embed_dims[0],) * count

    def other_outputs(self, names: Collection[str]) -> Set[str]:
        others = super().other_outputs(names)
        if self.pyramid is not None and not any(name.startswith('pyramid.') for name in names):
            others |= {f'pyramid.{name}' for name in self.pyramid.state_dict()}
        return others

    def map_sides(self, side: int) -> Tuple[int, ...]:
        (tokens,) = super().map_sides(side)
        if self.pyramid is None:
            return (tokens,)
        scales = tuple(self.stage_strides[0] / stride for stride in STRIDES_OF_MAPS)
        rounded = ceil if self.ceil_mode else floor
        return tuple(rounded(tokens * scale) for scale in scales)

    def _forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Images to the last map, to the class token, or to the maps of ``pyramid_blocks``."""
        if self.pyramid is None:
            return super()._forward(x)
        self.check_images(x)
        memory_format = feature_map.memory_format_of(x)
        (stage,) = self.stages
        _, hw_shape, *tokens = stage(x, self.pyramid_blocks)
        return tuple(
            rescale(tokens_to_map(x, hw_shape)).contiguous(memory_format=memory_format)
            for rescale, x in zip(self.pyramid, tokens)
        )


def query(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """q of the rows of q, k and v."""
    return value.chunk(3)[0]


def key_and_value(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """k and v of the rows of q, k and v."""
    return value[len(value) // 3 :]


SCALED: Rows = {**BLOCK, 'gamma1': 'scale1.weight', 'gamma2': 'scale2.weight'}
XCA_BLOCK: Rows = {
    **SCALED,
    'norm3.': 'norm3.',
    'gamma3': 'scale3.weight',
    'attn.': 'attn.',
    'local_mp.conv1.': 'local.layers.0.',
    'local_mp.bn.': 'local.layers.2.',
    'local_mp.conv2.': 'local.layers.3.',
}
CLASS_LAYER: Rows = {
    **SCALED,
    **{
        f'attn.qkv.{kind}': [(f'q.{kind}', query), (f'kv.{kind}', key_and_value)]
        for kind in ('weight', 'bias')
    },
    # timm has three linears.
    'attn.q.': 'q.',
    'attn.k.': 'kv.',
    'attn.v.': 'kv.',
    'attn.proj.': 'proj.',
}
# Convolution, BatchNorm and GELU by turns.
STEM: Rows = {f'{2 * i}.{j}.': f'{3 * i + j}.' for i in range(4) for j in range(2)}
NAMES = NameTable(
    {
        **within('stages.0.patch_embed.layers.', 'patch_embed.proj.', STEM),
        'pos_embeder.token_projection.': 'stages.0.position.projection.',
        'pos_embed.token_projection.': 'stages.0.position.projection.',  # timm
        **within('stages.0.blocks.{i}.', 'blocks.{i}.', XCA_BLOCK),
        'cls_token': 'norm0.cls_token',
        **within('norm0.layers.{i}.', 'cls_attn_blocks.{i}.', CLASS_LAYER),
        'norm.': 'norm0.norm.',
        **HEAD,
    },
    identifying=('blocks.0.local_mp.conv1.weight', 'cls_attn_blocks.0.norm1.weight'),
)


SIZES = ('nano_12', 'tiny_12', 'tiny_24', 'small_12', 'small_24', 'medium_24', 'large_24')
SIZES_OF_DINO = ('small_12', 'medium_24')  # whose weights are of facebookresearch/dino


def _published(name: str, patch: int, kind: str) -> PublishedModel:
    """A model of one of ``SIZES``, for patches of that side."""
    backbone: Dict[str, Any] = dict(
        type='XCiTBackbone', arch=name[0] + name[-2:], patch_size=patch, out_type='cls_token'
    )
    if kind.startswith('384'):
        backbone['img_size'] = 384
    file = f'xcit/xcit_{name}_p{patch}_{kind}'
    if kind == 'dino':
        file = f'dino/dino_xcit_{name}_p{patch}_pretrain/dino_xcit_{name}_p{patch}_pretrain'
    address = f'https://dl.fbaipublicfiles.com/{file}.pth'
    return PublishedModel((NAMES,), backbone, address, head=kind != 'dino')


def _all_published() -> Dict[str, PublishedModel]:
    """The models by the authors' names, which leave out the size of images of 224 pixels."""
    published = {}
    for patch in (16, 8):
        for name in SIZES:
            kinds = ['224', '224_dist', '384_dist']  # those with dist are distilled
            if name in SIZES_OF_DINO:
                kinds.append('dino')
            for kind in kinds:
                full_name = f'xcit_{name}_p{patch}_{kind}'.removesuffix('_224')
                published[full_name] = _published(name, patch, kind)
    return published


PUBLISHED = _all_published()
# The four maps are rescaled by other layers for patches of 8 pixels than for 16.
MAP_NAMES = {
    8: NAMES.of_maps({'fpn1.0.': 'pyramid.0.'}, identifying=NAMES.identifying[:1]),
    16: NAMES.of_maps(
        {'fpn1.': 'pyramid.0.', 'fpn2.0.': 'pyramid.1.'},
        identifying=(NAMES.identifying[0], 'fpn2.0.weight'),
    ),
}
DENSE = {
    config.format(f'xcit-{name[0]}{name[-2:]}-p{patch}'): DenseModel(
        f'xcit_{name}_p{patch}',
        MAP_NAMES[patch],
        f'https://dl.fbaipublicfiles.com/xcit/{file}_xcit_{name}_p{patch}.pth',
    )
    for config, file in (
        ('mask-rcnn_{}_fpn_ms-3x_coco', 'coco/maskrcnn'),
        ('{}_fpn_8xb2-80k_ade20k-512x512', 'ade/sem_fpn'),
        ('{}_upernet_8xb2-160k_ade20k-512x512', 'ade/upernet'),
    )
    for name in ('tiny_12', 'small_12', 'small_24', 'medium_24')
    for patch in (8, 16)
}
FAMILY = Family({XCiTBackbone: 'xcit'}, PUBLISHED, dense=DENSE, licence='Apache-2.0')
