"""Agent Attention on DeiT, PVT and Swin."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows
from ...checkpoints.dense import dense_models
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import MAP_NORMS, REDUCED, first
from ..pyramid import Family
from . import cswin
from .deit import IDENTIFYING, vit_rows
from .flatten import CLOUD
from .pvt import pvt_rows
from .swin import WINDOWS, linear_window, swin_rows


def per_agent(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """``(1, heads, H, 1, a)`` to ``(heads, a, H, 1)``, and the same for columns."""
    return value[0].permute(0, 3, 1, 2)


def of_prefix(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """``(1, heads, 1, a)`` to ``(heads, a, 1)``."""
    return value[0].transpose(1, 2)


AGENT: Rows = {
    **REDUCED,
    'dwc.': 'lepe.conv.',
    'an_bias': 'gather_map',
    'na_bias': 'spread_map',
    'ah_bias': ('gather_rows', first),
    'aw_bias': ('gather_columns', first),
    'ha_bias': ('spread_rows', per_agent),
    'wa_bias': ('spread_columns', per_agent),
}
PVT_NAMES = NameTable(
    pvt_rows(AGENT),
    identifying=('block1.0.attn.an_bias', 'block1.0.attn.q.weight', 'pos_embed1'),
)
SWIN_NAMES = NameTable(
    swin_rows('{i+1}', {**AGENT, **WINDOWS}),
    identifying=('layers.0.blocks.0.attn.an_bias', 'layers.0.blocks.0.attn.qkv.weight'),
)
DEIT_NAMES = NameTable(
    vit_rows(
        {
            **AGENT,
            'qkv.': 'qkv.',
            'ac_bias': ('gather_prefix', first),
            'ca_bias': ('spread_prefix', of_prefix),
        }
    ),
    identifying=(*IDENTIFYING, 'blocks.0.attn.ac_bias'),
)
CSWIN_NAMES = NameTable(
    cswin.cswin_rows({**AGENT, 'get_v.': 'lepe.conv.'}),
    identifying=(*cswin.IDENTIFYING, 'stage1.0.attns.0.an_bias'),
)
LANDMARKS = (9, 16, 49, 49)


def windows(side: int, agents: Sequence[int], softmax: int = 7) -> List[Dict[str, Any]]:
    """The ``attn_cfg`` of a Swin with agents in its first stages, in windows of ``side``."""
    linear = [
        linear_window(side, type='AgentAttention', qkv='qkv', num_landmarks=landmarks)
        for landmarks in agents
    ]
    return linear + [dict(window_size=softmax)] * (4 - len(agents))


def mixed(side: int, softmax: int = 7) -> List[Optional[Dict[str, Any]]]:
    """As :func:`windows`, with agents in two stages and in two blocks of the third."""
    first, second, third = windows(side, LANDMARKS[:3], softmax)[:3]
    return [first, second, dict(third, first_blocks=2), None]


def cswin_maps(agents: Sequence[int] = LANDMARKS[:2]) -> List[Optional[Dict[str, Any]]]:
    """The ``attn_cfg`` of a CSWin with agents in its first two stages."""
    linear = [dict(type='AgentAttention', qkv='qkv', num_landmarks=count) for count in agents]
    return [*linear, None, None]


def _published(names: NameTable, digits: str, **backbone: Any) -> PublishedModel:
    return PublishedModel((names,), backbone, f'{CLOUD}/{digits}/?dl=1')


def _deit(
    digits: str,
    arch: str,
    agents: int = 49,
    first_blocks: Optional[int] = None,
    **options: Any,
) -> PublishedModel:
    attn_cfg: Dict[str, Any] = dict(type='AgentAttention', qkv='qkv', num_landmarks=agents)
    if first_blocks is not None:
        attn_cfg['first_blocks'] = first_blocks
    return _published(DEIT_NAMES, digits, type='ViT', arch=arch, attn_cfg=attn_cfg, **options)


def _pvt(digits: str, arch: str, **options: Any) -> PublishedModel:
    attn_cfg = dict(type='AgentAttention', per_stage=dict(num_landmarks=LANDMARKS))
    return _published(PVT_NAMES, digits, type='PVT', arch=arch, attn_cfg=attn_cfg, **options)


def _cswin(digits: str, size: str, **options: Any) -> PublishedModel:
    arch = cswin.linear_arch(size)
    return _published(
        CSWIN_NAMES, digits, type='CSWin', arch=arch, attn_cfg=cswin_maps(), **options
    )


def _swin(digits: str, arch: str, **options: Any) -> PublishedModel:
    return _published(SWIN_NAMES, digits, type='Swin', arch=arch, **options)


PUBLISHED = {
    'agent_deit_tiny': _deit('57e0904221824ee7b7af', 'tiny'),
    'agent_deit_small': _deit('fdd43304372541db8ea7', 'small'),
    'agent_deit_small_448': _deit('a228f86241c445f1969b', 'small', img_size=448),
    'agent_deit_base': _deit('5115f15fdd7e4ab58fbc', 'base', agents=81, first_blocks=4),
    'agent_pvt_tiny': _pvt('13fdf0e0a7c5498c934f', 'tiny'),
    'agent_pvt_small': _pvt('36b8be9a8863456685a3', 'small'),
    'agent_pvt_medium': _pvt('4d00ecacf18b45f9b88c', 'medium'),
    'agent_pvt_medium_256': _pvt('654df734121643b19c52', 'medium', img_size=256),
    'agent_pvt_large': _pvt('040cfe0cfbbe4762ad09', 'large'),
    'agent_cswin_tiny': _cswin('8c562a74441e46d5902b', 'tiny'),
    'agent_cswin_small': _cswin('30eb8af675bc4b7a8747', 'small'),
    'agent_cswin_base': _cswin('c8035b0839b2410c8c9f', 'base'),
    'agent_cswin_base_384': _cswin(
        '1239be0df44b47719432', 'base', stripe_widths=(1, 2, 12), img_size=384
    ),
    'agent_swin_base': _swin('4fcd2d0114bb490483c3', 'base', attn_cfg=mixed(56)),
    'agent_swin_base_384': _swin(
        'bb84ee9058954706a557',
        'base',
        img_size=384,
        window_size=12,
        attn_cfg=mixed(96, softmax=12),
    ),
    'agent_swin_tiny': _swin('a2ddc1190c224f768a41', 'tiny', attn_cfg=windows(56, LANDMARKS[:3])),
    'agent_swin_small': _swin('f607172c9fea4d6e99bb', 'small', attn_cfg=windows(56, LANDMARKS[:2])),
    'agent_swin_small_288': _swin(
        '09760394e93b4046a25e',
        'small',
        img_size=288,
        attn_cfg=windows(72, LANDMARKS[:2], softmax=9),
    ),
}
# Three links of the authors are empty.
SWIN_FILES = {
    'mask-rcnn_agent-swin-{}_fpn_ms-1x_coco': dict(
        tiny='258e208469084e6abf26', small='52714305c21a4104bbc5'
    ),
    'mask-rcnn_agent-swin-{}_fpn_ms-3x_coco': dict(
        tiny='e0ab821875704960a505', small='b78f6ff837b84b61b122'
    ),
    'cascade-mask-rcnn_agent-swin-{}_fpn_ms-1x_coco': dict(tiny='39d78fddf90241e58db0'),
    'cascade-mask-rcnn_agent-swin-{}_fpn_ms-3x_coco': dict(
        tiny='ed2af911d0e64d359aa3', small='3d092a23b935458b98ed', base='b3a628e668eb460ca532'
    ),
    'agent-swin-{}_upernet_8xb2-160k_ade20k-512x512': dict(
        tiny='280481ee38024bce8364', small='', base=''
    ),
}
PVT_FILES = {
    'mask-rcnn_agent-pvt-{}_fpn_1x_coco': dict(
        tiny='79cbc3a7b7a24a0b92c1',
        small='8e333aa6b55e45d4b76c',
        medium='6401bf2b227046a58fc3',
        large='8fa3d506f1e24099b99f',
    ),
    'retinanet_agent-pvt-{}_fpn_1x_coco': dict(
        tiny='d3c1dbe0243d4775aafd',
        small='d427a52511f64ab5a928',
        medium='81d6c824d9f244a192a3',
        large='2dc5b1f685fd4ecf8db5',
    ),
    'agent-pvt-{}_fpn_8xb2-40k_ade20k-512x512': dict(
        tiny='5e7bf988b4b74efe8654',
        small='11332fa565e443678e4c',
        medium='',
        large='0da8b58581214f85974f',
    ),
}
ADDRESS = CLOUD + '/{}/?dl=1'
DENSE = {
    **dense_models(SWIN_FILES, 'agent_swin_{}', SWIN_NAMES.of_maps(MAP_NORMS), ADDRESS),
    **dense_models(PVT_FILES, 'agent_pvt_{}', PVT_NAMES, ADDRESS),
}
FAMILY = Family(
    published=PUBLISHED,
    timm=dict(
        # As agent_transformer/data/build.py: a square of ⌊S / 0.875⌋, of Swin above 224 one of S.
        agent=dict(paper_ids='arXiv:2312.08874', crop_mode='squash'),
        agent_swin_small_288=dict(crop_pct=1.0),
        agent_swin_base_384=dict(crop_pct=1.0),
    ),
    dense=DENSE,
    licence='none',
)
