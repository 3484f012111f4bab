"""How the files of the authors' vision attentions become ours, see test_authors_attentions.py."""

import torch
from torchvision.models.convnext import LayerNorm2d

from mmlaplace.models import MHLAAttention
from mmlaplace.models.backbones.agent import AGENT
from mmlaplace.models.backbones.circulant import CIRCULANT
from mmlaplace.models.backbones.flatten import FLATTEN
from mmlaplace.models.backbones.inline import INLINE
from mmlaplace.models.backbones.polaformer import POLA
from mmlaplace.models.backbones.soft import ATTENTION as SOFT_NAMES
from mmlaplace.models.backbones.vit3 import TTT


def with_open_gate(value, hw_shape):
    """The linear of queries, keys and values, and a gate whose SiLU is 1."""
    channels = len(value) // 3
    gate = torch.full((channels,), 1.2784645427610738)
    return torch.cat([value, gate if value.dim() == 1 else torch.zeros(channels, channels)])


def agent(golden):
    """The map of the queries and the number of agents that the biases are for, and the linears."""
    height, width = golden['param:ha_bias'].shape[2], golden['param:wa_bias'].shape[3]
    count = golden['param:an_bias'].shape[1]
    return dict(linears_of(golden), input_resolution=(height, width), num_landmarks=count)


def norm_of(golden, layer):
    if f'param:{layer}.norm.weight' not in golden:
        return dict(type=torch.nn.Identity)
    of_batch = f'param:{layer}.norm.running_mean' in golden
    return dict(type='BN' if of_batch else LayerNorm2d)


def litemla(golden):
    """Theirs has heads of a width that need not divide the channels, and either of two norms."""
    size = golden.get('in:head_dim', golden.get('in:dim'))
    size = int(golden['param:aggreg.0.1.weight'].shape[1] if size is None else size)
    kernels = [name for name in golden if name.startswith('param:aggreg.') and '.0.weight' in name]
    return dict(
        head_dims=size,
        num_heads=len(golden['param:qkv.conv.weight']) // (3 * size),
        scales=tuple(golden[name].shape[2] for name in sorted(kernels)),
        out_dims=len(golden['param:proj.conv.weight']),
        proj_bias='param:proj.conv.bias' in golden,
        qkv_norm_cfg=norm_of(golden, 'qkv'),
        norm_cfg=norm_of(golden, 'proj'),
    )


def additive(golden):
    """Theirs calls heads what only widens queries and keys."""
    channels = len(golden['param:final.weight'])
    return dict(num_heads=1, out_dims=channels, expansion=len(golden['param:w_g']) // channels)


def linears_of(golden):
    return dict(qkv='qkv' if 'param:qkv.weight' in golden else 'q_kv')


def starts_as_theirs(attention, golden):
    """A new MHLA starts from the mixture that theirs starts from."""
    options = {name: golden[f'in:{name}'].item() for name in ('transform', 'exp_sigma')}
    start = MHLAAttention(attention.embed_dims, 1, (1, 1), grid=attention.grid, **options).mixture
    torch.testing.assert_close(start, torch.from_numpy(golden['in:initial_mix']))


def mhla(golden):
    grid = int(golden['in:H'] // golden['in:window'])
    return dict(grid=grid, normalizer='blocks', pre_norm=True)


def polarized(golden):
    layout = 'sequential' if 'param:conv_up.0.weight' in golden else 'parallel'
    return dict(softmax_over='tokens', layout=layout)


def landmarks_of_a_square(side):
    return dict(num_landmarks=side**2)


def inline_kernel(value):
    return dict(kernel={'leakyrelu': 'leaky_relu'}.get(value, value))


# A Newton iteration that is unrolled and one whose gradient is implicit agree as far as it has
# converged.
SOFT = dict(
    type='SOFTAttention',
    names=SOFT_NAMES,
    gradient=2e-2,
    settings={'in:ratio': 'pool_ratio', 'in:conv_size': 'lepe_kernel'},
)
AUTHORS = {
    'flatten': dict(type='FLattenAttention', names=FLATTEN),
    'agent': dict(
        type='AgentAttention',
        options=agent,
        told='agent_num num_patches window_size scale',
        settings={'in:downstream_agent_shape': 'agent_shape'},
        names=AGENT,
    ),
    'xca': dict(type='XCAttention'),
    'inline': dict(
        type='InLineAttention',
        options=linears_of,
        names=INLINE,
        settings={'in:kernel_func': inline_kernel},
    ),
    'litemla': dict(
        type='LiteMLA',
        options=litemla,
        told='in_channels out_channels dim head_dim heads_ratio scales norm use_bias kernel_func',
        names={'qkv.norm.': 'qkv_norm.', 'aggreg.': 'aggregations.', 'proj.norm.': 'norm.'},
    ),
    'rala': dict(type='RALAAttention'),
    'mala': dict(type='MALAAttention'),
    'nala': dict(type='NaLaAttention', names={'ln.': 'norm.'}),
    'nala_cosine': dict(
        type='NaLaAttention',
        options=dict(directions='cosine', rope=False, lepe_kernel=0),
        names={'qkv.': ('qkv.', with_open_gate), 'ln.': 'norm.'},
    ),
    'soft_attention': dict(SOFT, options=dict(normalized=False)),
    'softpp_attention': dict(SOFT, options=dict(newton_start_per='batch')),
    'pola_attention': dict(type='PolaAttention', names=POLA),
    'pola_pp': dict(
        type='PolaPPAttention', names={'s1': 'same_temperature', 's2': 'opposite_temperature'}
    ),
    'mita': dict(
        type='MiTAAttention',
        settings={
            'in:pool_size': landmarks_of_a_square,
            'in:kv_topk': 'topk',
            'in:router_topk': 'routes',
        },
    ),
    'mlla': dict(type='MLLAAttention'),
    'swiftformer': dict(
        type='AdditiveAttention',
        options=additive,
        told='in_dims token_dim',
        names={
            'w_g': 'score',
            'to_query.': 'query.',
            'to_key.': 'key.',
            'Proj.': 'mixed_proj.',
            'final.': 'proj.',
        },
    ),
    'mobilevitv2': dict(type='SeparableAttention', settings={'in:patch': 'patch_size'}),
    'mhla': dict(
        type='MHLAAttention',
        options=mhla,
        told='window eps initial_mix',
        prepare=starts_as_theirs,
        names={'piece_attn.conv.weight': 'mixture'},
    ),
    'ttt': dict(type='TTTAttention', names=TTT),
    'circulant': dict(type='CirculantAttention', names=CIRCULANT),
    'l2vit': dict(type='L2ViTAttention'),
    'sana': dict(type='SANAAttention'),
    'psa': dict(
        type='PolarizedAttention',
        options=polarized,
        names={
            'conv_q_right.': 'score.',
            'conv_v_right.': 'value.',
            'conv_up.': 'up.',
            'conv_q_left.': 'mean.',
            'conv_v_left.': 'token.',
        },
    ),
    'ecoformer': dict(
        type='EcoFormerAttention',
        options=dict(offset='own'),
        settings={'in:nbits': 'num_bits', 'in:m': 'num_anchors'},
        names={
            'fast_attention.ksh.A': 'directions',
            'fast_attention.ksh.mvec': 'means',
            'fast_attention.ksh.anchor': 'anchors',
        },
    ),
    'favit': dict(
        type='FaViTAttention',
        options=dict(average='runs'),
        told='windowsize',
        names={
            'kv_g.': 'kv.',
            'sr.': 'sr.projection.',
            'norm.': 'sr.norm.',
            'local_conv_g.': 'lepe.conv.',
            'kv_l.depth_conv.': 'near.conv.',
            'kv_l.point_conv.': 'around.',
            'fcs.': 'window_in.',
            'single_heads.': 'window_kv.',
            'local_convs.0.': 'window_lepe.0.conv.',
            'local_convs.1.': 'window_lepe.1.conv.',
        },
    ),
}
