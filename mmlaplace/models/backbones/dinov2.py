"""DINOv2: a ViT of patches of 14 pixels with layer scales, and with registers or without."""

from dataclasses import replace
from typing import List, Optional, Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import upcast

from ...checkpoints.conversion import NameTable, Rows, position_map
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import unchanged, zeros
from ..pyramid import Family, PlainBackbone, Stage, arch
from .deit import IDENTIFYING, SCALED_ROWS, resize_smooth, vit


def resize_longer(x: Tensor, hw_shape: Sequence[int]) -> Tensor:
    """Resize positions as the authors do without registers: bicubically, by sides 0.1 longer."""
    if any(isinstance(side, torch.SymInt) for side in hw_shape):
        raise ValueError(
            'a graph for images of any size cannot hold the resizing of the positions of DINOv2 '
            'without registers, whose factor is that of the image; export it for one size'
        )
    if tuple(x.shape[2:]) == tuple(hw_shape):
        return x
    scale = tuple((side + 0.1) / own for side, own in zip(hw_shape, x.shape[2:]))
    return F.interpolate(upcast(x)[0], scale_factor=scale, mode='bicubic').to(x.dtype)


def dinov2(
    patch_size: int = 14,
    with_cls_token: bool = True,
    num_registers: int = 0,
    layer_scale: float = 1e-5,
    window_size: int = 0,
    global_blocks: Optional[Sequence[int]] = None,
) -> List[Stage]:
    """DINOv2: a ViT with layer scales, registers, and positions that are resized bicubically.

    Args:
        patch_size: Side of a patch, in pixels. Default: 14.
        with_cls_token: Whether there is a class token. Without, there are no registers. Default:
            True.
        num_registers: Number of learned tokens behind the class token, which no map and no
            classifier has. The authors have 4. Default: 0.
        layer_scale: Value of the layer scales at the start. Default: 1e-5.
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
        window_size=window_size,
        global_blocks=global_blocks,
    )
    resize = resize_smooth if num_registers else resize_longer
    return [replace(stage, position={**(stage.position or {}), 'resize': resize})]


@MODELS.register_module()
class DINOv2(PlainBackbone):
    """DINOv2: a ViT of stride 14 with a class token, layer scales and, if set, registers.

    Its weights are trained without labels, and fit images of any size: positions are those of 37 x
    37 patches, resized bicubically. Arguments are those of :class:`PlainBackbone` and of the host
    :func:`~mmlaplace.models.backbones.dinov2.dinov2`. Attentions that take no class token need
    ``with_cls_token=False``.

    Source: DINOv2 (arXiv 2304.07193), registers (arXiv 2309.16588).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import DINOv2
        >>> arch = dict(embed_dims=[64], depths=[2], num_heads=[2], ffn_ratios=[4])
        >>> DINOv2(arch, num_registers=4)(torch.randn(1, 3, 70, 98))[0].shape
        torch.Size([1, 64, 5, 7])
    """

    host = staticmethod(dinov2)
    default_arch = 'small'
    arch_zoo = {
        'small': arch((384,), (12,), (6,)),
        'base': arch((768,), (12,), (12,)),
        'large': arch((1024,), (24,), (16,)),
    }


ROWS: Rows = {
    **SCALED_ROWS,
    'register_tokens': 'stages.0.position.registers',
    'mask_token': None,  # of the training
}
IDENTIFYING_SCALED = (*IDENTIFYING, 'blocks.0.ls1.gamma')
NAMES = NameTable(ROWS, IDENTIFYING_SCALED)
# Where there are registers, timm adds the class token's position to the class token.
TIMM_NAMES = NameTable(
    {
        **ROWS,
        'reg_token': 'stages.0.position.registers',
        'cls_token': [
            ('stages.0.position.cls_token', unchanged),
            ('stages.0.position.cls_position', zeros),
        ],
        'pos_embed': ('stages.0.position.map', position_map),
    },
    (*IDENTIFYING_SCALED, 'reg_token'),
)

DOWNLOADS = 'https://dl.fbaipublicfiles.com/dinov2'


def _published(size: str, num_registers: int) -> PublishedModel:
    """The backbone of a size. Its positions are those of images of 518 pixels."""
    name = f'dinov2_vit{size[0]}14'
    file = f'{name}_reg{num_registers}' if num_registers else name
    backbone = dict(type='DINOv2', arch=size, img_size=518)
    if num_registers:
        backbone.update(num_registers=num_registers)
    names = (NAMES, TIMM_NAMES) if num_registers else (NAMES,)
    return PublishedModel(names, backbone, f'{DOWNLOADS}/{name}/{file}_pretrain.pth', head=False)


PUBLISHED = {
    f'dinov2_{size}' + (f'_reg{registers}' if registers else ''): _published(size, registers)
    for registers in (0, 4)
    for size in ('small', 'base', 'large')
}
FAMILY = Family({DINOv2: 'dinov2'}, PUBLISHED, licence='Apache-2.0', weights_licence='Apache-2.0')
