"""How the files of the authors' vision attentions become ours, see test_authors_attentions.py."""

import pytest
import torch

from mmlaplace.models import MHLAAttention


def positions(value, hw_shape):
    """Positions of a map's tokens, reduced or not, ``(1, n, C)`` to ``(1, C, h, w)``."""
    ratio = round((hw_shape[0] * hw_shape[1] / value.shape[1]) ** 0.5)
    return value.mT.unflatten(2, [side // ratio for side in hw_shape])


def first(value, hw_shape):
    return value[0]


def rows(value, hw_shape):
    """``(1, heads, H, 1, a) -> (heads, a, H, 1)``, and the same for columns."""
    return value[0].permute(0, 3, 1, 2)


def flat(value, hw_shape):
    return value.flatten()


def agent_map(golden):
    """The map of the queries that the biases of rows and columns are for."""
    count, sides = golden.get('in:agent_num'), golden.get('in:agent_shape')
    if sides is not None and sides.prod() != count:
        pytest.skip(
            f'AgentAttention cannot resize to in:agent_shape = {sides.tolist()} from {count}'
        )
    shapes = golden['param:ha_bias'].shape, golden['param:wa_bias'].shape
    return dict(input_resolution=(shapes[0][2], shapes[1][3]))


def square(sides):
    return {} if len(set(sides)) == 1 else None


def linear(value, hw_shape):
    """The weight or bias of a convolution 1 x 1 as that of a linear."""
    return value.flatten(1) if value.dim() == 4 else value


def of_all_channels(golden):
    """No option, where the heads have all channels together."""
    heads, channels = golden['in:num_heads'], golden['in:x'].shape[1]
    size = golden.get('in:head_dim', channels // heads)
    if size * heads != channels:
        pytest.skip(
            f'LiteMLA has no option for in:head_dim = {size}: {heads} of {channels} channels'
        )
    return {}


def linears_of(golden):
    return dict(qkv='qkv' if 'param:qkv.weight' in golden else 'q_kv')


def starts_as_theirs(attention, golden):
    """A new MHLA starts from the mixture that theirs starts from."""
    sizes = dict(embed_dims=attention.embed_dims, num_heads=1, input_resolution=(1, 1))
    options = dict(grid=attention.grid, transform=golden['in:transform'].item())
    options['exp_sigma'] = golden['in:exp_sigma'].item()
    start = MHLAAttention(**sizes, **options).mixture
    torch.testing.assert_close(start, torch.from_numpy(golden['in:initial_mix']))


def exactly(expected):
    """A setting that is a constant here."""
    return lambda value: {} if value == expected else None


def inline_kernel(value):
    return dict(kernel={'leakyrelu': 'leaky_relu'}.get(value, value))


GATED = {
    'qkvo.': ('qkv.', linear), 'lepe.': 'lepe.conv.', 'proj.': ('proj.', linear),
}  # fmt: skip
LINEARS = {'q.': 'qkv.', 'kv.': 'kv.', 'proj.': 'proj.', 'dwc.': 'lepe.conv.'}
AUTHORS = {
    'flatten': dict(
        type='FLattenAttention',
        settings={'in:kernel_size': 'lepe_kernel'},
        names=dict(
            LINEARS, scale=('scale', flat), positional_encoding=('key_positions', positions)
        ),
    ),
    'agent': dict(
        type='AgentAttention',
        options=agent_map,
        settings={'in:agent_num': 'num_landmarks', 'in:agent_shape': square},
        names=dict(
            LINEARS, an_bias='gather_map', na_bias='spread_map',
            ah_bias=('gather_rows', first), aw_bias=('gather_columns', first),
            ha_bias=('spread_rows', rows), wa_bias=('spread_columns', rows),
        ),
    ),
    'xca': dict(
        type='XCAttention',
        names={'qkv.': 'qkv.', 'proj.': 'proj.', 'temperature': 'temperature'},
    ),
    'inline': dict(
        type='InLineAttention', options=linears_of,
        settings={'in:kernel_func': inline_kernel},
        names={**LINEARS, 'qkv.': 'qkv.', 'residual.': 'lepe.'},
    ),
    'litemla': dict(
        type='LiteMLA', options=of_all_channels,
        settings={'in:head_dim': lambda value: {}},
        names={'qkv.conv.': ('qkv.', linear), 'aggreg.': 'aggregations.',
               'proj.conv.': ('proj.', linear), 'proj.norm.': 'norm.'},
    ),
    'rala': dict(type='RALAAttention', names=GATED),
    'mala': dict(type='MALAAttention', names=GATED),
    'nala': dict(
        type='NaLaAttention',
        names={'qkvg.': 'qkv.', 'lepe.': 'lepe.conv.', 'out_proj.': 'proj.', 'ln.': 'norm.'},
    ),
    'mlla': dict(type='MLLAAttention', names={'qk.': 'qkv.', 'lepe.': 'lepe.conv.'}),
    'mlla_block': None,
    'swiftformer': dict(
        type='AdditiveAttention',
        options=lambda golden: dict(expansion=len(golden['param:w_g']) // golden['in:x'].shape[2]),
        names={'w_g': 'score', 'to_query.': 'query.', 'to_key.': 'key.', 'Proj.': 'mixed_proj.',
               'final.': 'proj.'},
    ),
    'mobilevitv2': dict(
        type='SeparableAttention', settings={'in:patch': 'patch_size'},
        names={'qkv_proj.block.conv.': ('qkv.', linear), 'out_proj.block.conv.': ('proj.', linear)},
    ),
    'mhla': dict(
        type='MHLAAttention',
        options=lambda golden: dict(
            grid=int(golden['in:H'] // golden['in:window']), normalizer='blocks', pre_norm=True,
        ),
        settings={'in:window': lambda value: {}, 'in:eps': exactly(1e-6),
                  'in:initial_mix': lambda value: {}},
        prepare=starts_as_theirs,
        names={'norm.': 'norm.', 'to_qkv.': 'qkv.', 'lepe.': 'lepe.conv.', 'to_out.0.': 'proj.',
               'piece_attn.conv.weight': ('mixture', linear),
               'q_norm.': 'q_norm.', 'k_norm.': 'k_norm.'},
    ),
    'l2vit': dict(
        type='L2ViTAttention',
        names={'temperature': 'temperature', 'qkv.': 'qkv.', 'proj.': 'proj.'},
    ),
    'l2vit_block': None,
    'sana': dict(
        type='SANAAttention',
        names={'qkv.': 'qkv.', 'proj.': 'proj.', 'q_norm.': 'q_norm.', 'k_norm.': 'k_norm.'},
    ),
    'psa': dict(
        type='PolarizedAttention',
        options=lambda golden: dict(
            softmax_over='tokens',
            layout='sequential' if 'param:conv_up.0.weight' in golden else 'parallel',
        ),
        names={'conv_q_right.': ('score.', linear), 'conv_v_right.': ('value.', linear),
               'conv_up.': ('up.', linear), 'conv_up.1.': ('up.1.', flat),
               'conv_q_left.': ('mean.', linear), 'conv_v_left.': ('token.', linear)},
    ),
    'ecoformer': dict(
        type='EcoFormerAttention', options=dict(offset='own'),
        settings={'in:nbits': 'num_bits', 'in:m': 'num_anchors'},
        names={'to_qk.': 'qkv.', 'to_v.': 'qkv.', 'proj.': 'proj.',
               'fast_attention.ksh.A': 'directions', 'fast_attention.ksh.mvec': ('means', first),
               'fast_attention.ksh.anchor': ('anchors', first)},
    ),
    'favit': dict(
        type='FaViTAttention', options=dict(average='runs'),
        settings={'in:windowsize': exactly(7)},
        names={'q.': 'q.', 'kv_g.': 'kv.', 'sr.': 'sr.projection.', 'norm.': 'sr.norm.',
               'local_conv_g.': 'lepe.conv.', 'kv_l.depth_conv.': 'near.conv.',
               'kv_l.point_conv.': ('around.', linear), 'fcs.': 'window_in.',
               'single_heads.': 'window_kv.', 'local_convs.0.': 'window_lepe.0.conv.',
               'local_convs.1.': 'window_lepe.1.conv.', 'proj.': 'proj.'},
    ),
}  # fmt: skip
