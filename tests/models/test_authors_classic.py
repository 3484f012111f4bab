"""The classic attentions give the authors' outputs and gradients, from the authors' weights."""

from authors_unit import of_files

from mmlaplace.checkpoints.conversion import position_map
from mmlaplace.models import (
    BasedAttention,
    CastlingAttention,
    CosformerAttention,
    EfficientLinearAttention,
    FlowAttention,
    HedgehogAttention,
    HydraAttention,
    KernelAttention,
    LinearAttention,
    LinformerAttention,
    NystromformerAttention,
    PerformerAttention,
    ReformerAttention,
    SkyformerAttention,
    SLABAttention,
    TaylorShiftAttention,
)

# What both Nyströmformers of the authors have, and where the Newton iteration starts: the authors'
# first release divides by the largest norm in the batch, their second by that of each matrix.
NYSTROMFORMER = dict(landmark_method='runs', lepe_kernel=0)
NEWTON_STARTS = dict(original='batch', exact='matrix')


@of_files('linear_transformer')
def test_linear_transformer(unit):
    unit.assert_same_rule(LinearAttention(**unit.sizes, eps=unit.settings['eps']))


@of_files('efficient_attention', 'efficient_attention_channels')
def test_efficient_attention(unit):
    attention = EfficientLinearAttention(
        **unit.sizes,
        residual=True,
        key_dims=unit.settings['key_channels'],
        value_dims=unit.settings['value_channels'],
    )
    linears = {'queries.': 'qkv.', 'keys.': 'qkv.', 'values.': 'qkv.', 'reprojection.': 'proj.'}
    unit.load(attention, linears)
    unit.assert_same(attention)


@of_files('performer')
def test_performer(unit):
    attention = PerformerAttention(
        **unit.sizes, num_features=unit.settings['nb_features'], eps=unit.settings['eps']
    )
    unit.load(attention, {'projection_matrix': 'projection_matrix'})
    unit.assert_same_rule(attention)


@of_files('performer_relu')
def test_performer_with_relu(unit):
    attention = PerformerAttention(
        **unit.sizes,
        features='relu',
        num_features=unit.settings['nb_features'],
        eps=unit.settings['eps'],
    )
    unit.load(attention, {'projection_matrix': 'projection_matrix'})
    unit.assert_same_rule(attention)


def sums_of_map(table, hw_shape):
    """Weights ``(N, m)`` of sums over N tokens as those of a map ``(1, m, H, W)``."""
    height, width = hw_shape if len(table) == hw_shape[0] * hw_shape[1] else (7, 7)
    return table.mT.reshape(1, -1, height, width)


@of_files('linformer', 'linformer_one_kv_head', 'linformer_one_kv_head_shared')
def test_linformer(unit):
    settings = unit.settings
    # The table of the third file is longer than the map, and the authors take its first rows.
    longer = settings['seq_len'] > settings['H'] * settings['W']
    sizes = dict(unit.sizes, input_resolution=(7, 7)) if longer else unit.sizes
    attention = LinformerAttention(
        **sizes,
        resize=not longer,
        num_landmarks=settings['k'],
        share_kv=settings['share_kv'],
        one_kv_head=settings['one_kv_head'],
        head_dims=settings.get('dim_head', sizes['embed_dims'] // sizes['num_heads']),
        qkv_bias=False,
    )
    rows = {'to_q.': 'qkv.', 'to_k.': 'qkv.', 'to_v.': 'qkv.', 'to_out.': 'proj.'}
    sums = {'proj_k': ('key_sums', sums_of_map), 'proj_v': ('value_sums', sums_of_map)}
    unit.load(attention, {**rows, **sums})
    unit.assert_same(attention)


@of_files('nystromformer', 'nystromformer_exact')
def test_nystromformer(unit):
    attention = NystromformerAttention(
        **unit.sizes,
        **NYSTROMFORMER,
        num_landmarks=unit.settings['num_landmarks'],
        conv_kernel_size=unit.settings['conv_kernel_size'],
        num_iters=unit.settings['n_iter'],
        newton_start_per=NEWTON_STARTS[unit.settings['init_option']],
    )
    unit.load(attention, {'conv.': 'conv.'})
    unit.assert_same_rule(attention)


@of_files('nystromformer_t2t', 'nystromformer_t2t_no_conv')
def test_nystromformer_of_t2t_vit(unit):
    attention = NystromformerAttention(
        **unit.sizes,
        **NYSTROMFORMER,
        value_shortcut=True,
        out_dims=unit.settings['in_dim'],
        num_landmarks=unit.settings['num_landmarks'],
        conv_kernel_size=unit.settings['kernel_size'],
        num_iters=unit.settings['n_iter'],
        newton_start_per=NEWTON_STARTS[unit.settings['init_option']],
        qkv_bias='qkv.bias' in unit.weights,
    )
    unit.load(attention, {'qkv.': 'qkv.', 'proj.': 'proj.', 'conv.': 'conv.'})
    unit.assert_same(attention)


@of_files('cosformer')
def test_cosformer(unit):
    attention = CosformerAttention(
        **unit.sizes,
        positions='flattened',
        proj=unit.settings['has_outproj'],
        eps=unit.settings['eps'],
    )
    linears = {'q_proj.': 'qkv.', 'k_proj.': 'qkv.', 'v_proj.': 'qkv.', 'out_proj.': 'proj.'}
    unit.load(attention, linears)
    unit.assert_same(attention)


@of_files('hydra')
def test_hydra(unit):
    attention = HydraAttention(**unit.sizes)
    unit.load(attention, {'qkv.': 'qkv.', 'out.': 'proj.'})
    unit.assert_same(attention)


@of_files('skyformer', 'skyformer_accumulation')
def test_skyformer(unit):
    attention = SkyformerAttention(
        **unit.sizes,
        bandwidth=32**0.25,
        landmark_method='random',
        num_landmarks=unit.settings['nb_features'] // 2,  # of the queries, and as many of the keys
        accumulation=unit.settings['accumulation'],
        num_iters=unit.settings['n_iter'],
        newton_start_per='batch',
        ridge=unit.settings['ridge'],
    )
    # The authors' draw, set by set.
    drawn = unit.tensors('in:')['sketching_matrix'].flatten(1)
    attention.draw = lambda q, k: drawn
    unit.assert_same_rule(attention)


@of_files('skyformer_kernelized')
def test_kernelized_attention_of_skyformer(unit):
    unit.assert_same_rule(KernelAttention(**unit.sizes))


@of_files('hedgehog')
def test_hedgehog(unit):
    attention = HedgehogAttention(
        **unit.sizes,
        feature_dims=unit.weights['feature_map_q.mlp.layer'].shape[2],
        skip_connection=unit.settings['skip_connection'],
        eps=unit.settings['eps'],
    )
    rows = {
        'feature_map_q.mlp.layer': 'query_map.weight',
        'feature_map_k.mlp.layer': 'key_map.weight',
    }
    unit.load(attention, rows)
    unit.assert_same_rule(attention)


@of_files('hedgehog_fla')
def test_hedgehog_of_flash_linear_attention(unit):
    attention = HedgehogAttention(**unit.sizes, form='joint', eps=unit.settings['eps'])
    rows = {'feature_map_q.layer.': 'query_map.', 'feature_map_k.layer.': 'key_map.'}
    unit.load(attention, rows)
    unit.assert_same_rule(attention)


@of_files('castling', 'castling_sparse')
def test_castling(unit):
    attention = CastlingAttention(
        **unit.sizes,
        lepe_kernel=0,
        conv_kernel_size=unit.settings['res_kernel_size'],
        sparse_softmax=unit.settings['sparse_reg'],
        qkv_bias=False,
    )
    unit.load(attention, {'qkv.': 'qkv.', 'proj.': 'proj.', 'dconv.': 'conv.'})
    unit.assert_same(attention)


def assert_same_taylorshift(unit, form):
    normalized = unit.settings['output_normalized']
    attention = TaylorShiftAttention(**unit.sizes, form=form, output_normalized=normalized)
    unit.load(attention, {'qkv.': 'qkv.', 'proj.': 'proj.', 'temperature': 'temperature'})
    unit.assert_same(attention)


@of_files('taylorshift')
def test_taylorshift(unit):
    assert_same_taylorshift(unit, 'linear')


@of_files('taylorshift_direct')
def test_taylorshift_with_all_pairs(unit):
    assert_same_taylorshift(unit, 'direct')


@of_files('based_taylor')
def test_based(unit):
    unit.assert_same_rule(BasedAttention(**unit.sizes, form='linear', eps=unit.settings['eps']))


def reformer(unit):
    """Ours, with the authors' random rotations."""
    attention = ReformerAttention(
        **unit.sizes,
        form='chunks',
        bucket_size=unit.settings['bucket_size'],
        num_hashes=unit.settings['n_hashes'],
        duplicates=unit.settings['allow_duplicate_attention'],
    )
    rotations = unit.tensors('in:')['rotations'][0].transpose(0, 1)  # (rounds, d, buckets / 2)
    attention.rotations = lambda buckets, like: rotations
    return attention


@of_files('reformer_lsh', 'reformer_lsh_no_duplicates', 'reformer_lsh_no_duplicates_one_round')
def test_rule_of_reformer(unit):
    unit.assert_same_rule(reformer(unit))


@of_files('reformer_layer')
def test_reformer(unit):
    attention = reformer(unit)
    unit.load(attention, {'toqk.': 'qkv.', 'tov.': 'qkv.', 'to_out.': 'proj.'})
    unit.assert_same(attention)


def assert_same_slab(unit, qkv, linears, **options):
    attention = SLABAttention(
        **unit.sizes, qkv=qkv, lepe_kernel=unit.settings['kernel_size'], **options
    )
    positions = {'positional_encoding': ('key_positions', position_map)}
    unit.load(attention, {**linears, **positions, 'dwc.': 'lepe.conv.', 'proj.': 'proj.'})
    unit.assert_same(attention)


@of_files('slab')
def test_slab_in_swin(unit):
    assert_same_slab(unit, 'qkv', {'qkv.': 'qkv.'}, eps=unit.settings['eps'])


@of_files('slab_pvt', 'slab_eps')
def test_slab_in_pvt(unit):
    linears = {'q.': 'qkv.', 'kv.': 'kv.'}
    assert_same_slab(unit, 'q_kv', linears, sr_ratio=unit.settings['sr_ratio'])


@of_files('flow', 'flowformer_cv')
def test_flowformer_in_vision(unit):
    attention = FlowAttention(**unit.sizes)
    unit.load(attention, {'qkv.': 'qkv.', 'proj.': 'proj.'})
    unit.assert_same(attention)


@of_files('flowformer')
def test_flowformer(unit):
    attention = FlowAttention(**unit.sizes, eps=unit.settings['eps'])
    linears = {f'{part}_projection.': 'qkv.' for part in ('query', 'key', 'value')}
    unit.load(attention, {**linears, 'out_projection.': 'proj.'})
    unit.assert_same(attention)
