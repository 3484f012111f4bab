"""ViT, DeiT and DeiT III; the image towers of CLIP and SigLIP, and EVA-02, by timm's names."""

from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, Target, map_sides, position_map, within
from ...checkpoints.published import CLIP, MINUS_ONE_TO_ONE, ImageStats, PublishedModel
from ...checkpoints.rows import (
    ATTENTION,
    BLOCK,
    HEAD,
    class_position,
    map_positions,
    unchanged,
    zeros,
)
from ..layers import PatchEmbed, SwiGLU, resize_map
from ..layers.checks import check_counts
from ..pyramid import Family, PlainBackbone, Stage, arch
from ..pyramid.plain import windows_in_blocks
from ..pyramid.stage import in_every_block


def resize_smooth(x: Tensor, hw_shape: Sequence[int]) -> Tensor:
    """Resize positions bicubically without aliasing, as timm, and DINOv2 with registers."""
    return resize_map(x, hw_shape, mode='bicubic', antialias=True)


def vit(
    patch_size: int = 16,
    with_cls_token: bool = True,
    norm_first: bool = True,
    with_dist_token: bool = False,
    cpe_kernel: int = 0,
    layer_scale: Optional[float] = None,
    smooth_positions: bool = False,
    position_norm: bool = False,
    num_registers: int = 0,
    learned_positions: bool = True,
    rope_form: Optional[str] = None,
    qkv_bias: bool = True,
    swiglu: bool = False,
    ffn_norm: bool = False,
    window_size: int = 0,
    global_blocks: Optional[Sequence[int]] = None,
) -> List[Stage]:
    """The host of all plain ViTs: one stage of patches, with positions and a class token.

    Args:
        patch_size: Side of a patch, in pixels. Default: 16.
        with_cls_token: Whether there is a class token. Default: True.
        norm_first: Whether blocks are pre-norm. SOFT's are post-norm. Default: True.
        with_dist_token: Whether a second class token follows the first, as in distilled DeiT, whose
            classifier reads both. Default: False.
        cpe_kernel: Odd kernel size of a depthwise convolution before each attention, whose output
            is added to the tokens in the place of learned positions, as in ViT³ and CA-DeiT. It
            needs ``with_cls_token=False``. Default: 0, learned positions.
        layer_scale: Value of layer scales at the start, 1e-4 in DeiT III. Default: None, no layer
            scales.
        smooth_positions: Whether positions are resized bicubically and without aliasing, as in
            timm. Default: False, bilinearly.
        position_norm: Whether a LayerNorm follows the positions, as in CLIP. Default: False.
        num_registers: Number of learned tokens behind the class token, which no map and no
            classifier has. Without a class token there are none. Default: 0.
        learned_positions: Whether there are learned positions. Default: True.
        rope_form: Form of rotary positions in the attentions, see :class:`RotaryEmbedding2D`:
            ``'centred'`` in DINOv3, ``'reference'`` in EVA-02. Prefix tokens have none. Default:
            None, no such positions.
        qkv_bias: Whether queries, keys and values have a bias. Default: True.
        swiglu: Whether FFNs are :class:`SwiGLU`. Default: False.
        ffn_norm: Whether their product has a norm, as in EVA-02. Default: False.
        window_size: Side of windows, in tokens, which all blocks have but a few global ones, as in
            ViTDet. Prefix tokens are seen from each window, see :class:`SoftmaxAttention`. An
            attention without such windows, as in a hybrid, sees the whole map. Default: 0, none.
        global_blocks: Numbers of the blocks without windows. Default: the last of each quarter,
            (2, 5, 8, 11) of 12 blocks.

    Raises:
        ValueError: For a second class token without the first, ``cpe_kernel`` with a class token,
            registers that are no positive number, or 0 for none, ``ffn_norm`` without ``swiglu``,
            and ``global_blocks`` without a ``window_size``.
    """
    if with_dist_token and not with_cls_token:
        raise ValueError(
            'with_dist_token=True needs a class token, got with_cls_token=False; set both, or '
            'neither'
        )
    if cpe_kernel and with_cls_token:
        raise ValueError(
            f'cpe_kernel={cpe_kernel} convolves a map, where a class token has no place; set '
            'with_cls_token=False'
        )
    if num_registers != 0:
        check_counts(num_registers=num_registers)
    if ffn_norm and not swiglu:
        raise ValueError('ffn_norm=True is a norm inside of SwiGLU; set swiglu=True')
    if global_blocks is not None and not window_size:
        raise ValueError(
            f'global_blocks={global_blocks!r} are the blocks without windows; set window_size too'
        )
    tokens: dict = dict(cls_token=with_cls_token, dist_token=with_dist_token, decay=False)
    if with_cls_token:
        tokens['num_registers'] = num_registers
    tokens['learned'] = learned_positions
    if smooth_positions:
        tokens['resize'] = resize_smooth
    if position_norm:
        tokens['norm_cfg'] = dict(type='LN', eps=1e-5)
    frame: Dict[str, Any] = {} if rope_form is None else dict(rope=True, rope_form=rope_form)
    if not qkv_bias:
        frame['qkv_bias'] = False
    block: Dict[str, Any] = dict(
        norm_first=norm_first, cpe_kernels=(cpe_kernel, 0), layer_scale=layer_scale
    )
    if swiglu:
        block['ffn_cfg'] = dict(type=SwiGLU, with_norm=ffn_norm)
    has_position = not cpe_kernel and (learned_positions or with_cls_token or position_norm)
    return [
        Stage(
            partial(PatchEmbed, patch_size=patch_size, norm=False),
            patch_size,
            dict(type='SoftmaxAttention'),
            frame=frame,
            attn_in_blocks=(
                windows_in_blocks(window_size, global_blocks) if window_size else in_every_block
            ),
            position=tokens if has_position else None,
            embed_norm=False,
            block=block,
        )
    ]


@MODELS.register_module()
class ViT(PlainBackbone):
    """ViT and DeiT: one stage of stride 16, with a class token.

    Patches have a side of 16 pixels. Learned positions are resized to the input. Blocks are
    pre-norm. Arguments are those of :class:`PlainBackbone` and of the host
    :func:`~mmlaplace.models.backbones.deit.vit`. ``layer_scale=1e-4`` gives the layers of DeiT III.
    For the image tower of CLIP, set ``position_norm=True``, ``norm_cfg=dict(type='LN', eps=1e-5)``
    and, where its name says so, ``act_cfg=dict(type='QuickGELU')``: no weight shows the last two.
    SigLIP's has ``with_cls_token=False``, and its attention pooling is left out. So has SigLIP 2's.
    EVA-02 has ``rope_form='reference'`` beside learned positions, and ``swiglu=True``.
    Attentions that take no class token need ``with_cls_token=False``. Each value of an arch given
    as a dict has one entry.

    Source: ViT (arXiv 2010.11929), DeiT (arXiv 2012.12877), DeiT III (arXiv 2204.07118), CLIP
    (arXiv 2103.00020), SigLIP (arXiv 2303.15343), SigLIP 2 (arXiv 2502.14786), EVA-02 (arXiv
    2303.11331), windows with global blocks (ViTDet, arXiv 2203.16527). The sizes are those of DeiT
    and DeiT III.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import ViT
        >>> arch = dict(embed_dims=[64], depths=[2], num_heads=[2], ffn_ratios=[4])
        >>> ViT(arch, out_type='cls_token')(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 64])
        >>> xca = ViT(arch, attn_cfg=dict(type='XCAttention'), with_cls_token=False)
        >>> xca(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 64, 4, 6])
    """

    host = staticmethod(vit)
    arch_zoo = {
        'micro': arch((128,), (4,)),
        'tiny': arch((192,), (12,), (3,)),
        'small': arch((384,), (12,), (6,)),
        'medium': arch((512,), (12,), (8,)),
        'base': arch((768,), (12,), (12,)),
        'large': arch((1024,), (24,), (16,)),
    }


def vit_rows(attention: Rows = ATTENTION) -> Rows:
    """The rows of a ViT with a class token, and with an attention."""
    block = {**BLOCK, **within('attn.', 'attn.', attention)}
    return {
        'patch_embed.proj.': 'stages.0.patch_embed.projection.',
        'cls_token': 'stages.0.position.cls_token',
        'pos_embed': [
            ('stages.0.position.cls_position', class_position),
            ('stages.0.position.map', map_positions),
        ],
        **within('stages.0.blocks.{i}.', 'blocks.{i}.', block),
        'norm.': 'norm0.',
        **HEAD,
    }


def convolved_vit_rows(attention: Rows) -> Rows:
    """The rows of a ViT with a convolution before each attention in the place of positions."""
    rows = {k: v for k, v in vit_rows(attention).items() if k not in ('cls_token', 'pos_embed')}
    return {**rows, 'blocks.{i}.cpe.': 'stages.0.blocks.{i}.cpe1.conv.'}


IDENTIFYING = ('cls_token', 'pos_embed', 'blocks.0.attn.qkv.weight')
VIT_NAMES = NameTable(vit_rows(), IDENTIFYING)


# Distilled DeiT has a linear on each of its two tokens, and their average is the score. Here that
# is one linear of both tokens: its weight is the average of the two, each with zeros beside it.
def of_first_token(weight: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The linear of the class token ``(classes, C)`` as one of both tokens."""
    return F.pad(weight, (0, weight.shape[1]))


def of_second_token(weight: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The linear of the distillation token ``(classes, C)`` as one of both tokens."""
    return F.pad(weight, (weight.shape[1], 0))


def second_position(tokens: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The position of the second token, ``(1, 1, C)`` of ``(1, 2 + N, C)``."""
    return tokens[:, 1:2]


def positions_after_two(tokens: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The positions of the map, ``(1, C, H, W)`` of ``(1, 2 + N, C)``."""
    return position_map(tokens[:, 2:], image_size)


DISTILLED_NAMES = NameTable(
    {
        **vit_rows(),
        'dist_token': 'stages.0.position.dist_token',
        'pos_embed': [
            ('stages.0.position.cls_position', class_position),
            ('stages.0.position.dist_position', second_position),
            ('stages.0.position.map', positions_after_two),
        ],
        'head.weight': ('head.fc.weight', of_first_token),
        'head_dist.weight': ('head.fc.weight', of_second_token),
        'head_dist.bias': 'head.fc.bias',
    },
    (*IDENTIFYING, 'dist_token', 'head_dist.weight'),
    means=('head.fc.',),
)


def class_position_if_any(tokens: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The position of the class token, ``(1, 1, C)`` of ``(1, 1 + N, C)``, or zeros.

    DeiT III, whose names are those of DINOv2, has positions ``(1, N, C)`` of the map alone. A map
    of one aspect cannot have both N and 1 + N tokens.
    """
    return tokens[:, :1] if _before_map(tokens, image_size) else zeros(tokens[:, :1], image_size)


def positions_of_map(tokens: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The positions of the other tokens, ``(1, C, H, W)``."""
    return position_map(tokens[:, _before_map(tokens, image_size) :], image_size)


def _before_map(tokens: Tensor, image_size: Tuple[int, int]) -> int:
    return 0 if map_sides(tokens.shape[1], image_size) else 1


SCALED_ROWS: Rows = {
    **vit_rows(),
    'pos_embed': [
        ('stages.0.position.cls_position', class_position_if_any),
        ('stages.0.position.map', positions_of_map),
    ],
    'blocks.{i}.ls1.gamma': 'stages.0.blocks.{i}.scale1.weight',
    'blocks.{i}.ls2.gamma': 'stages.0.blocks.{i}.scale2.weight',
}
DEIT3_NAMES = NameTable(
    {
        **SCALED_ROWS,
        'blocks.{i}.gamma_1': 'stages.0.blocks.{i}.scale1.weight',
        'blocks.{i}.gamma_2': 'stages.0.blocks.{i}.scale2.weight',
    },
    (*IDENTIFYING, 'blocks.0.gamma_1'),
)
DEIT3_OF_TIMM = NameTable(SCALED_ROWS, (*IDENTIFYING, 'blocks.0.ls1.gamma'))
# In timm, whose CLIP has no bias of patches.
CLIP_NAMES = NameTable(
    {
        **vit_rows(),
        'norm_pre.weight': 'stages.0.position.norm.weight',
        'norm_pre.bias': [
            ('stages.0.position.norm.bias', unchanged),
            ('stages.0.patch_embed.projection.bias', zeros),
        ],
    },
    (*IDENTIFYING, 'norm_pre.weight'),
)
MEAN_ROWS: Rows = {
    **{name: own for name, own in vit_rows().items() if name != 'cls_token'},
    'pos_embed': ('stages.0.position.map', position_map),
}
IDENTIFYING_MEAN = (
    'patch_embed.proj.weight',
    'pos_embed',
    'blocks.0.attn.qkv.weight',
    'norm.weight',
)
MEAN_NAMES = NameTable(MEAN_ROWS, IDENTIFYING_MEAN)
SIGLIP_NAMES = NameTable(
    {
        **{name: own for name, own in MEAN_ROWS.items() if not name.startswith('head.')},
        'attn_pool.': None,  # which gives one vector of the map; a head after it fits no model here
    },
    (*IDENTIFYING_MEAN, 'attn_pool.latent'),
)


# EVA-02 and DINOv3 in timm, which have no bias of keys.
WITHOUT_KEY_BIAS: Target = [('attn.qkv.bias', unchanged), ('attn.qkv.bias', zeros)]
EVA02_BLOCK: Rows = {
    'norm1.': 'norm1.',
    'norm2.': 'norm2.',
    # One linear in the smaller two sizes, three in the larger ones.
    'attn.qkv.weight': 'attn.qkv.weight',
    'attn.q_bias': WITHOUT_KEY_BIAS,
    'attn.v_bias': 'attn.qkv.bias',
    'attn.q_proj.weight': 'attn.qkv.weight',
    'attn.k_proj.weight': 'attn.qkv.weight',
    'attn.v_proj.weight': 'attn.qkv.weight',
    'attn.q_proj.bias': WITHOUT_KEY_BIAS,
    'attn.v_proj.bias': 'attn.qkv.bias',
    'attn.proj.': 'attn.proj.',
    'mlp.fc1.': 'ffn.first.',
    'mlp.fc1_g.': 'ffn.first.',
    'mlp.fc1_x.': 'ffn.first.',
    'mlp.norm.': 'ffn.norm.',
    'mlp.fc2.': 'ffn.last.',
}
EVA02_NAMES = NameTable(
    {
        'patch_embed.proj.': 'stages.0.patch_embed.projection.',
        'cls_token': 'stages.0.position.cls_token',
        'pos_embed': [
            ('stages.0.position.cls_position', class_position),
            ('stages.0.position.map', map_positions),
        ],
        **within('stages.0.blocks.{i}.', 'blocks.{i}.', EVA02_BLOCK),
        'fc_norm.': 'norm0.',  # which timm applies to the mean of the map
        'head.': None,
    },
    ('cls_token', 'pos_embed', 'fc_norm.weight', 'blocks.0.attn.proj.weight'),
)
HIDDEN = (8 / 3,)  # in units of the channels
EVA02_ARCHS = {
    'tiny': arch((192,), (12,), (3,), HIDDEN),
    'small': arch((384,), (12,), (6,), HIDDEN),
    'base': arch((768,), (12,), (12,), HIDDEN),
    'large': arch((1024,), (24,), (16,), HIDDEN),
}


ADDRESS = 'https://dl.fbaipublicfiles.com/deit'


def _deit(size: str, file: str, **options: Any) -> PublishedModel:
    backbone = dict(type='ViT', arch=size, **options)
    return PublishedModel((VIT_NAMES,), backbone, f'{ADDRESS}/{file}.pth')


def _distilled(size: str, file: str, **options: Any) -> PublishedModel:
    backbone = dict(type='ViT', arch=size, with_dist_token=True, **options)
    return PublishedModel((DISTILLED_NAMES,), backbone, f'{ADDRESS}/{file}.pth')


def _deit3(size: str, file: str, **options: Any) -> PublishedModel:
    backbone = dict(type='ViT', arch=size, layer_scale=1e-4, smooth_positions=True, **options)
    return PublishedModel((DEIT3_NAMES, DEIT3_OF_TIMM), backbone, f'{ADDRESS}/{file}.pth')


def _clip(size: str, page: str, image_stats: ImageStats = CLIP, **options: Any) -> PublishedModel:
    # No tensor tells the activation, but timm's names do.
    backbone = dict(
        type='ViT',
        arch=size,
        smooth_positions=True,
        position_norm=True,
        norm_cfg=dict(type='LN', eps=1e-5),
        **options,
    )
    page = f'https://huggingface.co/timm/{page}'
    return PublishedModel(
        (CLIP_NAMES,), backbone, page=page, head=False, image_stats=image_stats, licence='MIT'
    )


def _siglip(size: Union[str, dict], page: str, **options: Any) -> PublishedModel:
    backbone = dict(type='ViT', arch=size, smooth_positions=True, with_cls_token=False, **options)
    page = f'https://huggingface.co/timm/{page}'
    names = SIGLIP_NAMES, MEAN_NAMES
    return PublishedModel(names, backbone, page=page, head=False, image_stats=MINUS_ONE_TO_ONE)


SO400M = arch((1152,), (27,), (16,), (3.7362,))
GIANT_OPT = arch((1536,), (40,), (16,))
TANH_GELU = dict(type='GELU', approximate='tanh')  # of some sizes of SigLIP, which no weight shows


def _eva02(size: str) -> PublishedModel:
    backbone: Dict[str, Any] = dict(
        type='ViT',
        arch=EVA02_ARCHS[size],
        patch_size=14,
        smooth_positions=True,
        rope_form='reference',
        swiglu=True,
    )
    if size in ('base', 'large'):
        backbone['ffn_norm'] = True
    page = f'https://huggingface.co/timm/eva02_{size}_patch14_224.mim_in22k'
    return PublishedModel(
        (EVA02_NAMES,), backbone, page=page, head=False, image_stats=CLIP, licence='MIT'
    )


QUICK_GELU = dict(type='QuickGELU')  # of OpenAI's weights
PUBLISHED = {
    'deit_tiny': _deit('tiny', 'deit_tiny_patch16_224-a1311bcf'),
    'deit_small': _deit('small', 'deit_small_patch16_224-cd65a155'),
    'deit_base': _deit('base', 'deit_base_patch16_224-b5f2ef4d'),
    'deit_base_384': _deit('base', 'deit_base_patch16_384-8de9b5d1', img_size=384),
    'deit_tiny_distilled': _distilled('tiny', 'deit_tiny_distilled_patch16_224-b40b3cf7'),
    'deit_small_distilled': _distilled('small', 'deit_small_distilled_patch16_224-649709d9'),
    'deit_base_distilled': _distilled('base', 'deit_base_distilled_patch16_224-df68dfff'),
    'deit_base_distilled_384': _distilled(
        'base', 'deit_base_distilled_patch16_384-d0272ac0', img_size=384
    ),
    'deit3_small': _deit3('small', 'deit_3_small_224_1k'),
    'deit3_small_384': _deit3('small', 'deit_3_small_384_1k', img_size=384),
    'deit3_medium': _deit3('medium', 'deit_3_medium_224_1k'),
    'deit3_base': _deit3('base', 'deit_3_base_224_1k'),
    'deit3_base_384': _deit3('base', 'deit_3_base_384_1k', img_size=384),
    'deit3_large': _deit3('large', 'deit_3_large_224_1k'),
    'deit3_large_384': _deit3('large', 'deit_3_large_384_1k', img_size=384),
    'deit3_small_21k': _deit3('small', 'deit_3_small_224_21k'),
    'deit3_small_384_21k': _deit3('small', 'deit_3_small_384_21k', img_size=384),
    'deit3_medium_21k': _deit3('medium', 'deit_3_medium_224_21k'),
    'deit3_base_21k': _deit3('base', 'deit_3_base_224_21k'),
    'deit3_base_384_21k': _deit3('base', 'deit_3_base_384_21k', img_size=384),
    'deit3_large_21k': _deit3('large', 'deit_3_large_224_21k'),
    'deit3_large_384_21k': _deit3('large', 'deit_3_large_384_21k', img_size=384),
    'clip_quickgelu_base': _clip(
        'base', 'vit_base_patch16_clip_quickgelu_224.openai', act_cfg=QUICK_GELU
    ),
    'clip_quickgelu_large': _clip(
        'large', 'vit_large_patch14_clip_quickgelu_224.openai', act_cfg=QUICK_GELU, patch_size=14
    ),
    'clip_base': _clip('base', 'vit_base_patch16_clip_224.laion2b'),
    'clip_large': _clip(
        'large', 'vit_large_patch14_clip_224.laion2b', MINUS_ONE_TO_ONE, patch_size=14
    ),
    'siglip_base': _siglip('base', 'vit_base_patch16_siglip_224.webli'),
    'siglip_large': _siglip('large', 'vit_large_patch16_siglip_256.webli', img_size=256),
    'siglip_so400m': _siglip(SO400M, 'vit_so400m_patch14_siglip_224.webli', patch_size=14),
    'siglip2_base': _siglip('base', 'vit_base_patch16_siglip_224.v2_webli'),
    'siglip2_base_patch32': _siglip(
        'base',
        'vit_base_patch32_siglip_256.v2_webli',
        patch_size=32,
        img_size=256,
        act_cfg=TANH_GELU,
    ),
    'siglip2_large': _siglip('large', 'vit_large_patch16_siglip_256.v2_webli', img_size=256),
    'siglip2_so400m': _siglip(
        SO400M, 'vit_so400m_patch16_siglip_256.v2_webli', img_size=256, act_cfg=TANH_GELU
    ),
    'siglip2_so400m_patch14': _siglip(
        SO400M, 'vit_so400m_patch14_siglip_224.v2_webli', patch_size=14
    ),
    'siglip2_giantopt': _siglip(
        GIANT_OPT, 'vit_giantopt_patch16_siglip_256.v2_webli', img_size=256, act_cfg=TANH_GELU
    ),
    **{f'eva02_{size}': _eva02(size) for size in EVA02_ARCHS},
}
FAMILY = Family({ViT: 'deit'}, PUBLISHED, licence='Apache-2.0')
