"""How the files of the authors' classic attentions become ours, see test_authors_attentions.py."""

import math

import torch


def map_of(count, hw_shape):
    """The map of ``count`` tokens: the file's, a square, or a row."""
    if hw_shape[0] * hw_shape[1] == count:
        return hw_shape
    side = math.isqrt(count)
    return (side, side) if side**2 == count else (1, count)


def hw_of(golden):
    return int(golden['in:H']), int(golden['in:W'])


def positions(value, hw_shape):
    """Positions of a map's tokens, reduced or not, ``(1, n, C)`` to ``(1, C, h, w)``."""
    count, tokens = value.shape[1], hw_shape[0] * hw_shape[1]
    ratio = math.isqrt(tokens // count) if tokens % count == 0 else 1
    return value.mT.unflatten(2, map_of(count, [side // ratio for side in hw_shape]))


def sums(value, hw_shape):
    """``(N, m)`` to ``(1, m, H, W)``."""
    return value.mT[None].unflatten(2, map_of(len(value), hw_shape))


def rows(golden, name):
    return len(golden[f'param:{name}.weight'])


def efficient(golden):
    return dict(residual=True, key_dims=rows(golden, 'keys'), value_dims=rows(golden, 'values'))


def linformer(golden):
    table, hw_shape = len(golden['param:proj_k']), hw_of(golden)
    heads = golden['in:num_heads' if 'in:num_heads' in golden else 'in:heads']
    return dict(
        num_landmarks=golden['param:proj_k'].shape[1],
        share_kv='param:proj_v' not in golden,
        input_resolution=map_of(table, hw_shape),
        resize=table == hw_shape[0] * hw_shape[1],
        one_kv_head=rows(golden, 'to_k') < rows(golden, 'to_q'),
        head_dims=rows(golden, 'to_q') // int(heads),
    )


def nystromformer(golden):
    taps = golden['param:conv.weight'].shape[2] if 'param:conv.weight' in golden else 0
    return dict(landmark_method='runs', lepe_kernel=0, conv_kernel_size=taps)


def castling(golden):
    return dict(lepe_kernel=0, conv_kernel_size=golden['param:dconv.weight'].shape[2])


def hedgehog(golden):
    return dict(feature_dims=golden['param:feature_map_q.mlp.layer'].shape[2])


def slab(golden):
    tokens = golden['param:positional_encoding'].shape[1] * golden.get('in:sr_ratio', 1) ** 2
    form = 'qkv' if 'param:qkv.weight' in golden else 'q_kv'
    return dict(qkv=form, input_resolution=map_of(int(tokens), hw_of(golden)))


def halves(count):
    """Landmarks of the queries, and as many of the keys."""
    return dict(num_landmarks=int(count) // 2)


def cosformer(golden):
    """Theirs has a last linear even where it does not use it."""
    return {'out_proj.': 'proj.' if golden.get('in:has_outproj', True) else None}


def draws_as_theirs(attention, golden):
    index = torch.from_numpy(golden['in:sketching_matrix']).flatten(1)  # set by set
    attention.draw = lambda images, queries, keys: index


def turns_as_theirs(attention, golden):
    rotations = torch.from_numpy(golden['in:rotations'])[0].transpose(0, 1)  # (R, d, buckets / 2)
    attention.rotations = lambda buckets: rotations


START = {'original': dict(newton_start_per='batch'), 'exact': dict(newton_start_per='matrix')}
NEWTON = {'in:init_option': START.get}
PERFORMER = dict(type='PerformerAttention', settings={'in:nb_features': 'num_features'})
TAYLOR = dict(type='TaylorShiftAttention', told='a b c')
AUTHORS = {
    'linear_transformer': dict(type='LinearAttention'),
    'efficient_attention': dict(
        type='EfficientLinearAttention',
        options=efficient,
        told='in_channels key_channels value_channels',
    ),
    'performer': PERFORMER,
    'performer_relu': dict(PERFORMER, options=dict(features='relu')),
    'linformer': dict(
        type='LinformerAttention',
        options=linformer,
        told='dim k seq_len one_kv_head share_kv dim_head',
        names={'proj_k': ('key_sums', sums), 'proj_v': ('value_sums', sums)},
    ),
    'nystromformer': dict(
        type='NystromformerAttention',
        options=nystromformer,
        settings=NEWTON,
        told='conv_kernel_size',
    ),
    'nystromformer_t2t': dict(
        type='NystromformerAttention',
        told='dim',
        options=dict(landmark_method='runs', lepe_kernel=0, value_shortcut=True),
        settings={**NEWTON, 'in:in_dim': 'out_dims', 'in:kernel_size': 'conv_kernel_size'},
    ),
    'cosformer': dict(
        type='CosformerAttention',
        options=dict(positions='flattened'),
        settings={'in:has_outproj': 'proj'},
        names=cosformer,
    ),
    'hydra': dict(type='HydraAttention'),
    'skyformer': dict(
        type='SkyformerAttention',
        options=dict(bandwidth=32**0.25, landmark_method='random', newton_start_per='batch'),
        settings={'in:nb_features': halves},
        told='sketching_matrix random_sign',
        prepare=draws_as_theirs,
    ),
    'skyformer_kernelized': dict(type='KernelAttention'),
    'hedgehog': dict(
        type='HedgehogAttention',
        options=hedgehog,
        names={
            'feature_map_q.mlp.layer': 'query_map.weight',
            'feature_map_k.mlp.layer': 'key_map.weight',
        },
    ),
    'hedgehog_fla': dict(
        type='HedgehogAttention',
        options=dict(form='joint'),
        names={'feature_map_q.layer.': 'query_map.', 'feature_map_k.layer.': 'key_map.'},
    ),
    'castling': dict(
        type='CastlingAttention',
        options=castling,
        names={'dconv.': 'conv.'},
        settings={'in:sparse_reg': 'sparse_softmax'},
        told='res_kernel_size',
    ),
    'taylorshift': dict(TAYLOR, options=dict(form='linear')),
    'taylorshift_direct': dict(TAYLOR, options=dict(form='direct')),
    'based_taylor': dict(type='BasedAttention', options=dict(form='linear')),
    'reformer': dict(
        type='ReformerAttention',
        options=dict(form='chunks'),
        prepare=turns_as_theirs,
        settings={'in:n_hashes': 'num_hashes', 'in:allow_duplicate_attention': 'duplicates'},
        told='rotations dim attend_across_buckets causal rehash_each_round '
        'random_rotations_per_head',
    ),
    'slab': dict(
        type='SLABAttention',
        options=slab,
        names={
            'positional_encoding': ('key_positions', positions),
            'q.': 'qkv.',
            'dwc.': 'lepe.conv.',
        },
    ),
    'flow': dict(type='FlowAttention'),
}
