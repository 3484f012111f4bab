"""RAVLT, a pyramid with convolutions, gates and rotary positions."""

from functools import partial
from typing import Any, Collection, Dict, List, Optional, Sequence, Set, Tuple, Type, Union

from mmengine.registry import MODELS

from ...checkpoints.conversion import NameTable, Rows, within
from ...checkpoints.dense import dense_models
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import flat, linear
from ..layers import ConvPatchEmbed
from ..pyramid import MICRO, STRIDES, Family, PyramidBackbone, Stage, arch

gated_arch = partial(arch, ffn_ratios=(3.5,) * 4)


def _stem(in_channels: int, embed_dims: int, **options: Any) -> ConvPatchEmbed:
    """Four convolutions, of which the last has all channels, and the others half of them."""
    return ConvPatchEmbed(in_channels, embed_dims, (2, 1, 1, 2), embed_dims // 2, **options)


def gated_pyramid(
    layer_scale: Union[float, Sequence[float]] = 1.0, stem_norm_cfg: Optional[dict] = None
) -> List[Stage]:
    """RAVLT: a convolutional stem, RALA in two stages, then softmax, all with a gate.

    Args:
        layer_scale: Value at the start of the scales of residual branches, or one value for each
            stage. The authors take 1 in ``tiny`` and ``small``, (1, 1, 1e-6, 1e-6) in ``base`` and
            1e-6 in ``large``. Default: 1.
        stem_norm_cfg: Config of the norms after the convolutions that embed patches, in every
            stage, such as ``dict(type='SyncBN')``. Default: ``dict(type='BN')``.

    Raises:
        ValueError: For another number of layer scales than stages.
    """
    scales = [layer_scale] * 4 if isinstance(layer_scale, (int, float)) else list(layer_scale)
    if len(scales) != len(STRIDES):
        raise ValueError(
            f'layer_scale must be one number, or one for each of the {len(STRIDES)} stages, got '
            f'{layer_scale!r}'
        )
    embed: Dict[str, Any] = dict(norm_cfg=stem_norm_cfg, act_cfg=dict(type='GELU'), last_act=False)
    stem, down = partial(_stem, **embed), partial(ConvPatchEmbed, strides=(2,), **embed)
    return [
        Stage(
            patches,
            stride,
            dict(type=kind),
            frame=dict(gate=True, rope=True, rope_form='pairs', lepe_kernel=5),
            embed_norm=False,
            block=dict(
                layer_scale=scale,
                cpe_kernels=(3, 0),
                ffn_cfg=dict(dwconv_kernel=3, dwconv_residual=True),
            ),
        )
        for patches, stride, kind, scale in zip(
            (stem, down, down, down),
            STRIDES,
            ('RALAAttention', 'RALAAttention', 'SoftmaxAttention', 'SoftmaxAttention'),
            scales,
        )
    ]


@MODELS.register_module()
class RAVLT(PyramidBackbone):
    """RAVLT: rank-augmented linear attention in two stages, then softmax attention in two.

    The stem has four 3 x 3 convolutions, and each later stage begins with one of stride 2. Each has
    BatchNorm. A block begins with a depthwise 3 x 3 convolution, whose output is added to the
    tokens. The attentions have a gate, rotary positions, and a 5 x 5 convolution on V. The FFN has
    a 3 x 3 convolution on its hidden channels, which is a residual. Both branches have layer scale.

    Returned maps have a LayerNorm, as in the authors' detectors. The authors' classifiers have none
    there: ``out_norms=False``, and ``ConvPoolingNeck`` as the neck. A checkpoint of such a
    classifier loads with and without these norms, which keep their values then.

    Arguments are those of :class:`PyramidBackbone` and of the host
    :func:`~mmlaplace.models.backbones.ravlt.gated_pyramid`.

    Source: RALA (arXiv 2411.07635).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import RAVLT
        >>> maps = RAVLT(arch='micro')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 96, 4, 6), (1, 128, 2, 3)]
    """

    host = staticmethod(gated_pyramid)
    arch_zoo = {
        'micro': MICRO,
        'tiny': gated_arch((64, 128, 256, 512), (2, 2, 6, 2), (1, 2, 4, 8)),
        'small': gated_arch((64, 128, 320, 512), (3, 5, 9, 3), (1, 2, 5, 8)),
        'base': gated_arch((96, 192, 384, 512), (4, 6, 12, 6), (1, 2, 6, 8)),
        'large': gated_arch((96, 192, 448, 640), (4, 7, 19, 8), (1, 2, 7, 10)),
    }

    def other_outputs(self, names: Collection[str]) -> Set[str]:
        """As in :class:`PyramidBackbone`, and all norms of maps if the checkpoint has none."""
        other = super().other_outputs(names)
        norms: Tuple[str, ...] = tuple(f'norm{i}.' for i in range(self.num_stages))
        if not any(name.startswith(norms) for name in names):
            other |= {name for name in self.state_dict() if name.startswith(norms)}
        return other


ATTENTION: Rows = {'qkvo.': ('qkv.', linear), 'lepe.': 'lepe.conv.', 'proj.': ('proj.', linear)}
BLOCK: Rows = {
    'pos.': 'cpe1.conv.',
    'norm1.norm.': 'norm1.',
    **within('attn.', 'attn.', ATTENTION),
    'gamma_1': ('scale1.weight', flat),
    'norm2.norm.': 'norm2.',
    'ffn.fc1.': ('ffn.layers.0.', linear),
    'ffn.dwconv.': 'ffn.dwconv.conv.',
    'ffn.fc2.': ('ffn.layers.3.', linear),
    'gamma_2': ('scale2.weight', flat),
}
NAMES = NameTable(
    {
        'patch_embed.proj.': 'stages.0.patch_embed.layers.',
        # In the authors' code, the embedding of a stage belongs to the stage before it.
        **within(
            'stages.{i+1}.patch_embed.layers.',
            'layers.{i}.downsample.',
            {'reduction.': '0.', 'norm.': '1.'},
        ),
        **within('stages.{i}.blocks.{j}.', 'layers.{i}.blocks.{j}.', BLOCK),
        'layers.{i}.RoPE.angle': None,
        'proj.': 'neck.projection.',
        'norm.': 'neck.norm.',
        'head.': ('head.fc.', linear),
    },
    identifying=('layers.0.blocks.0.attn.qkvo.weight', 'layers.0.blocks.0.gamma_1', 'proj.weight'),
)


def published(
    kind: Type[RAVLT],
    size: str,
    projection: int,
    weights: str = '',
    page: str = '',
    names: NameTable = NAMES,
) -> PublishedModel:
    """The classifier of a size, with so many channels before its head."""
    backbone: Dict[str, Any] = dict(type=kind.__name__, arch=size, out_norms=False)
    dims = kind.arch_zoo[size]['embed_dims'][-1]
    neck = dict(type='ConvPoolingNeck', in_channels=dims, out_channels=projection)
    return PublishedModel((names,), backbone, weights, neck, page)


HUB = 'https://huggingface.co/aldjalkdf'
PUBLISHED = {
    f'ravlt_{size}': published(RAVLT, size, 1024, f'{HUB}/RAVLT/resolve/main/RAVLT_{letter}.pth')
    for size, letter in dict(tiny='T', small='S', base='B', large='L').items()
}
MAP_NAMES = NAMES.of_maps(
    {'extra_norms.{i}.norm.': 'norm{i}.'},
    identifying=(*NAMES.identifying[:2], 'extra_norms.3.norm.weight'),
)
FILES = {
    'retinanet_ravlt-{}_fpn_1x_coco': dict(
        tiny='retinanet_t_1x_12_epoch',
        small='retinanet_s_1x_12_epoch',
        base='retinanet_b_1x_12_epoch',
        large='retinanet_l_1x_12_epoch',
    ),
    'mask-rcnn_ravlt-{}_fpn_1x_coco': dict(
        tiny='maskrcnn_t_1x_12_epoch',
        small='maskrcnn_s_1x_12_epoch',
        base='maskrcnn_b_1x_12_epoch',
        large='maskrcnn_l_1x_12_epoch',
    ),
    'mask-rcnn_ravlt-{}_fpn_ms-3x_coco': dict(
        small='maskrcnn_s_3x_36_epoch',
        base='maskrcnn_b_3x_36_epoch',
        large='maskrcnn_l_3x_36_epoch',
    ),
    'cascade-mask-rcnn_ravlt-{}_fpn_ms-3x_coco': dict(
        small='Casmaskrcnn_s_3x_36_epoch',
        base='Casmaskrcnn_b_3x_36_epoch',
        large='Casmaskrcnn_l_3x_36_epoch',
    ),
    'ravlt-{}_fpn_8xb2-80k_ade20k-512x512': dict(
        tiny='fpn_t_1x', small='fpn_s_1x', base='fpn_b_1x', large='fpn_l_1x'
    ),
    'ravlt-{}_upernet_8xb2-160k_ade20k-512x512': dict(
        small='uper_s_2x', base='uper_b_2x', large='uper_l_2x'
    ),
}
DENSE = dense_models(FILES, 'ravlt_{}', MAP_NAMES, HUB + '/RAVLT/resolve/main/{}.pth')
FAMILY = Family(
    {RAVLT: 'ravlt'},
    PUBLISHED,
    # Evaluated as the authors' datasets.py does: the centre, by timm's defaults.
    timm=dict(ravlt=dict(paper_ids='arXiv:2411.07635', first_conv='layers.0')),
    dense=DENSE,
    licence='none',
)
