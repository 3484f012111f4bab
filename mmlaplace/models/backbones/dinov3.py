"""DINOv3: a ViT of patches of 16 pixels with rotary positions, registers and layer scales."""

from dataclasses import replace
from typing import List, Optional, Sequence, Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, within
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import BLOCK
from ..pyramid import Family, PlainBackbone, Stage, arch
from .deit import WITHOUT_KEY_BIAS, vit


def dinov3(
    patch_size: int = 16,
    with_cls_token: bool = True,
    num_registers: int = 4,
    layer_scale: float = 1e-5,
    swiglu: bool = False,
    qkv_bias: bool = False,
    window_size: int = 0,
    global_blocks: Optional[Sequence[int]] = None,
) -> List[Stage]:
    """DINOv3: a ViT with registers, and with rotary positions in the place of learned ones.

    Args:
        patch_size: Side of a patch, in pixels. Default: 16.
        with_cls_token: Whether there is a class token. Without, there are no registers. Default:
            True.
        num_registers: Number of learned tokens behind the class token, which no map and no
            classifier has. Default: 4.
        layer_scale: Value of the layer scales at the start. Default: 1e-5.
        swiglu: Whether FFNs are :class:`SwiGLU`, as in the authors' ViT-S+. Default: False.
        qkv_bias: Whether queries, keys and values have a bias. In the released ViT-S to ViT-L it is
            zero. Default: False.
        window_size, global_blocks: Windows of all blocks but a few, as in
            :func:`~mmlaplace.models.backbones.deit.vit`. Default: 0 and None, no windows.

    Raises:
        ValueError: As :func:`~mmlaplace.models.backbones.deit.vit`.
    """
    (stage,) = vit(
        patch_size,
        with_cls_token,
        layer_scale=layer_scale,
        num_registers=num_registers,
        learned_positions=False,
        rope_form='centred',
        qkv_bias=qkv_bias,
        swiglu=swiglu,
        window_size=window_size,
        global_blocks=global_blocks,
    )
    norm = dict(type='LN', eps=1e-5)
    return [replace(stage, norm=norm, out_norm=norm)]


@MODELS.register_module()
class DINOv3(PlainBackbone):
    """DINOv3: a ViT of stride 16 with a class token, four registers and rotary positions.

    Its weights are trained without labels, and fit images of any size: positions are the centres of
    the patches, from -1 to 1 of each side. Arguments are those of :class:`PlainBackbone` and of the
    host :func:`~mmlaplace.models.backbones.dinov3.dinov3`. ``swiglu=True`` gives the FFNs of
    ViT-S+. Attentions that take no class token need ``with_cls_token=False``. The random shifts and
    scales of positions, by which the authors trained, are left out.

    Source: DINOv3 (arXiv 2508.10104).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import DINOv3
        >>> arch = dict(embed_dims=[64], depths=[2], num_heads=[2], ffn_ratios=[4])
        >>> DINOv3(arch, swiglu=True)(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 64, 4, 6])
        >>> windows = DINOv3(arch, window_size=2, global_blocks=[1], out_blocks=(0, 1))
        >>> [tuple(x.shape) for x in windows(torch.randn(1, 3, 64, 96))]
        [(1, 64, 4, 6), (1, 64, 4, 6)]
    """

    host = staticmethod(dinov3)
    only_positions = 'centred'
    default_arch = 'small'
    arch_zoo = {
        'small': arch((384,), (12,), (6,)),
        'base': arch((768,), (12,), (12,)),
        'large': arch((1024,), (24,), (16,)),
    }


def without_key_bias(bias: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The bias of queries, keys and values ``(3C,)`` with zeros for keys, whose bias is masked."""
    queries, keys, values = bias.chunk(3)
    return torch.cat([queries, torch.zeros_like(keys), values])


TIMM_BLOCK: Rows = {
    **BLOCK,
    'attn.qkv.': 'attn.qkv.',
    'attn.q_bias': WITHOUT_KEY_BIAS,
    'attn.v_bias': 'attn.qkv.bias',
    'attn.proj.': 'attn.proj.',
    'gamma_1': 'scale1.weight',
    'gamma_2': 'scale2.weight',
}
STEM: Rows = {
    'patch_embed.proj.': 'stages.0.patch_embed.projection.',
    'cls_token': 'stages.0.position.cls_token',
    'norm.': 'norm0.',
    'head.': None,
}
IDENTIFYING = ('cls_token', 'reg_token', 'blocks.0.attn.qkv.weight', 'blocks.0.gamma_1')
SWIGLU_BLOCK: Rows = {
    **{start: own for start, own in TIMM_BLOCK.items() if not start.startswith('mlp.')},
    'mlp.fc1_g.': 'ffn.first.',
    'mlp.fc1_x.': 'ffn.first.',
    'mlp.fc2.': 'ffn.last.',
}


def _names_in_timm(block: Rows, *identifying: str) -> NameTable:
    rows = {
        **STEM,
        'reg_token': 'stages.0.position.registers',
        **within('stages.0.blocks.{i}.', 'blocks.{i}.', block),
    }
    return NameTable(rows, (*IDENTIFYING, *identifying))


TIMM_NAMES = _names_in_timm(TIMM_BLOCK)
TIMM_SWIGLU_NAMES = _names_in_timm(SWIGLU_BLOCK, 'blocks.0.mlp.fc1_g.weight')
BLOCK_OF_AUTHORS: Rows = {
    **BLOCK,
    'mlp.w1.': 'ffn.first.',
    'mlp.w2.': 'ffn.first.',
    'mlp.w3.': 'ffn.last.',
    'attn.qkv.weight': 'attn.qkv.weight',
    'attn.qkv.bias': ('attn.qkv.bias', without_key_bias),
    'attn.qkv.bias_mask': None,
    'attn.proj.': 'attn.proj.',
    'ls1.gamma': 'scale1.weight',
    'ls2.gamma': 'scale2.weight',
}
NAMES = NameTable(
    {
        **STEM,
        'storage_tokens': 'stages.0.position.registers',
        'mask_token': None,  # of the training
        'rope_embed.periods': None,  # computed here
        'local_cls_norm.': None,
        **within('stages.0.blocks.{i}.', 'blocks.{i}.', BLOCK_OF_AUTHORS),
    },
    ('cls_token', 'storage_tokens', 'blocks.0.attn.qkv.weight', 'blocks.0.ls1.gamma'),
)


def _published(size: str, plus: bool, qkv_bias: bool) -> PublishedModel:
    backbone = dict(type='DINOv3', arch=size, img_size=256)
    if plus:
        backbone['swiglu'] = True
    if qkv_bias:
        backbone['qkv_bias'] = True
    name = f'vit_{size}{"_plus" * plus}_patch16_dinov3{"_qkvb" * qkv_bias}.lvd1689m'
    names = (TIMM_SWIGLU_NAMES if plus else TIMM_NAMES,)
    # The authors' files have biases, which are zero.
    return PublishedModel(
        (*names, NAMES) if qkv_bias else names,
        backbone,
        page=f'https://huggingface.co/timm/{name}',
        head=False,
    )


PUBLISHED = {
    f'dinov3_{size}{"_plus" * plus}{"_qkvb" * qkv_bias}': _published(size, plus, qkv_bias)
    for size, plus in (('small', False), ('small', True), ('base', False), ('large', False))
    for qkv_bias in (False, True)
}
FAMILY = Family(
    {DINOv3: 'dinov3'}, PUBLISHED, licence='DINOv3 License', weights_licence='DINOv3 License'
)
