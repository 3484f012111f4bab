"""The vision attentions give the authors' outputs and gradients, from the authors' weights."""

import authors_unit
import test_authors_classic  # noqa: F401  (its files are tested too)
import torch
from authors_unit import of_files
from torchvision.models.convnext import LayerNorm2d

from mmlaplace.models import (
    AdditiveAttention,
    AgentAttention,
    CirculantAttention,
    EcoFormerAttention,
    FaViTAttention,
    FLattenAttention,
    InLineAttention,
    L2ViTAttention,
    LiteMLA,
    MALAAttention,
    MHLAAttention,
    MiTAAttention,
    MLLAAttention,
    NaLaAttention,
    PolaAttention,
    PolaPPAttention,
    PolarizedAttention,
    RALAAttention,
    SANAAttention,
    SeparableAttention,
    SOFTAttention,
    TTTAttention,
    XCAttention,
)
from mmlaplace.models.backbones.agent import AGENT
from mmlaplace.models.backbones.circulant import CIRCULANT
from mmlaplace.models.backbones.flatten import FLATTEN
from mmlaplace.models.backbones.inline import INLINE
from mmlaplace.models.backbones.polaformer import POLA
from mmlaplace.models.backbones.soft import ATTENTION as SOFT
from mmlaplace.models.backbones.vit3 import TTT

LINEARS = {'qkv.': 'qkv.', 'proj.': 'proj.'}
LEPE = {'lepe.': 'lepe.conv.'}


def test_every_file_of_the_authors_has_its_test():
    assert set(authors_unit.FILES) == authors_unit.TESTED


# SOFT's authors unroll the Newton iteration. The gradient here is implicit, and both agree as far
# as the iteration has converged.
NEWTON_GRADIENT = 2e-2


@of_files('soft_attention_r2', 'soft_attention_r4')
def test_soft(unit):
    attention = SOFTAttention(
        **unit.sizes,
        normalized=False,
        pool_ratio=unit.settings['ratio'],
        lepe_kernel=unit.settings['conv_size'],
    )
    unit.load(attention, SOFT)
    unit.assert_same(attention, NEWTON_GRADIENT)


@of_files('softpp_attention_r4')
def test_softpp(unit):
    attention = SOFTAttention(
        **unit.sizes,
        newton_start_per='batch',
        pool_ratio=unit.settings['ratio'],
        lepe_kernel=unit.settings['conv_size'],
    )
    unit.load(attention, SOFT)
    unit.assert_same(attention, NEWTON_GRADIENT)


@of_files('pola_attention_sr1', 'pola_attention_sr2')
def test_polaformer(unit):
    attention = PolaAttention(
        **unit.sizes, alpha=unit.settings['alpha'], sr_ratio=unit.settings['sr_ratio']
    )
    unit.load(attention, POLA)
    unit.assert_same(attention)


@of_files('pola_pp', 'pola_pp_eps')
def test_polaformerpp(unit):
    attention = PolaPPAttention(**unit.sizes)
    temperatures = {'s1': 'same_temperature', 's2': 'opposite_temperature'}
    unit.load(attention, {'qkvg.': 'qkv.', 'proj.': 'proj.', **LEPE, **temperatures})
    unit.assert_same(attention)


@of_files('flatten', 'flatten_eps')
def test_flatten(unit):
    attention = FLattenAttention(
        **unit.sizes,
        sr_ratio=unit.settings['sr_ratio'],
        focusing_factor=unit.settings['focusing_factor'],
        lepe_kernel=unit.settings['kernel_size'],
    )
    unit.load(attention, FLATTEN)
    unit.assert_same(attention)


def map_of_agents(unit):
    """The map that the biases are for, which need not be that of the input."""
    return unit.weights['ha_bias'].shape[2], unit.weights['wa_bias'].shape[3]


@of_files('agent')
def test_agent_attention_in_pvt(unit):
    attention = AgentAttention(
        **unit.sizes,
        qkv='q_kv',
        num_landmarks=unit.settings['agent_num'],
        sr_ratio=unit.settings['sr_ratio'],
    )
    unit.load(attention, AGENT)
    unit.assert_same(attention)


@of_files('agent_anysize', 'agent_grid')
def test_agent_attention_of_another_map_in_pvt(unit):
    attention = AgentAttention(
        **dict(unit.sizes, input_resolution=map_of_agents(unit)),
        qkv='q_kv',
        num_landmarks=unit.settings['agent_num'],
        agent_shape=unit.settings['agent_shape'],
        lepe_kernel=unit.settings.get('kernel_size', 3),
    )
    unit.load(attention, AGENT)
    unit.assert_same(attention)


@of_files('agent_swin')
def test_agent_attention_of_another_map_in_swin(unit):
    attention = AgentAttention(
        **dict(unit.sizes, input_resolution=map_of_agents(unit)),
        qkv='qkv',
        num_landmarks=unit.settings['agent_num'],
        agent_shape=unit.settings['downstream_agent_shape'],
    )
    unit.load(attention, {**AGENT, 'qkv.': 'qkv.'})
    unit.assert_same(attention)


@of_files('inline')
def test_inline_in_pvt(unit):
    attention = InLineAttention(**unit.sizes, qkv='q_kv', kernel=unit.settings['kernel_func'])
    unit.load(attention, INLINE)
    unit.assert_same(attention)


@of_files('inline_kernel')
def test_inline_in_swin(unit):
    attention = InLineAttention(**unit.sizes, qkv='qkv', kernel=unit.settings['kernel_func'])
    unit.load(attention, INLINE)
    unit.assert_same(attention)


@of_files('xca')
def test_cross_covariance(unit):
    attention = XCAttention(**unit.sizes)
    unit.load(attention, {**LINEARS, 'temperature': 'temperature'})
    unit.assert_same(attention)


def assert_same_litemla(unit, head_dims, qkv_norm, norm, **options):
    """The norms are those behind the first linear and behind the last."""
    attention = LiteMLA(
        **unit.sizes,
        head_dims=head_dims,
        scales=unit.settings['scales'],
        qkv_norm_cfg=qkv_norm,
        norm_cfg=norm,
        qkv_bias='qkv.conv.bias' in unit.weights,
        proj_bias='proj.conv.bias' in unit.weights,
        eps=unit.settings['eps'],
        **options,
    )
    rows = {
        'qkv.conv.': 'qkv.',
        'qkv.norm.': 'qkv_norm.',
        'aggreg.': 'aggregations.',
        'proj.conv.': 'proj.',
        'proj.norm.': 'norm.',
    }
    unit.load(attention, rows)
    unit.assert_same(attention)


NO_NORM, BATCH_NORM = dict(type=torch.nn.Identity), dict(type='BN')


@of_files('litemla', 'litemla_eps', 'litemla_quadratic')
def test_litemla(unit):
    assert_same_litemla(unit, unit.settings['head_dim'], NO_NORM, BATCH_NORM)


@of_files('litemla_norms')
def test_litemla_with_two_norms(unit):
    assert_same_litemla(unit, unit.settings['head_dim'], BATCH_NORM, BATCH_NORM)


@of_files('litemla_heads_ratio')
def test_litemla_with_heads_of_any_width(unit):
    layer_norm, width = dict(type=LayerNorm2d), unit.settings['out_channels']
    assert_same_litemla(unit, unit.settings['dim'], layer_norm, NO_NORM, out_dims=width)


@of_files('rala', 'rala_eps')
def test_rala(unit):
    attention = RALAAttention(**unit.sizes)
    unit.load(attention, {'qkvo.': 'qkv.', 'proj.': 'proj.', **LEPE})
    unit.assert_same(attention)


@of_files('mala', 'mala_eps')
def test_mala(unit):
    attention = MALAAttention(**unit.sizes)
    unit.load(attention, {'qkvo.': 'qkv.', 'proj.': 'proj.', **LEPE})
    unit.assert_same(attention)


@of_files('nala', 'nala_eps')
def test_nala(unit):
    attention = NaLaAttention(**unit.sizes)
    unit.load(attention, {'qkvg.': 'qkv.', 'out_proj.': 'proj.', 'ln.': 'norm.', **LEPE})
    unit.assert_same(attention)


def with_open_gate(value, hw_shape):
    """The linear of queries, keys and values, and a gate whose SiLU is 1."""
    channels = len(value) // 3
    gate = torch.full((channels,), 1.2784645427610738)
    return torch.cat([value, gate if value.dim() == 1 else torch.zeros(channels, channels)])


@of_files('nala_cosine')
def test_nala_with_cosines(unit):
    attention = NaLaAttention(**unit.sizes, directions='cosine', rope=False, lepe_kernel=0)
    rows = {'qkv.': ('qkv.', with_open_gate), 'out_proj.': 'proj.', 'ln.': 'norm.'}
    unit.load(attention, rows)
    unit.assert_same(attention)


@of_files('mita', 'mita_routes', 'mita_routed_only')
def test_mita(unit):
    attention = MiTAAttention(
        **unit.sizes,
        num_landmarks=unit.settings['pool_size'] ** 2,
        topk=unit.settings['kv_topk'],
        routes=unit.settings['router_topk'],
        shared=unit.settings['shared'],
    )
    unit.assert_same_rule(attention)


@of_files('mlla', 'mlla_eps')
def test_mlla(unit):
    attention = MLLAAttention(**unit.sizes)
    unit.load(attention, {'qk.': 'qkv.', **LEPE})
    unit.assert_same(attention)


@of_files('swiftformer', 'swiftformer_heads', 'swiftformer_heads_only')
def test_swiftformer(unit):
    # The heads of the authors only widen queries and keys.
    width = unit.settings.get('token_dim', unit.sizes['embed_dims'])
    attention = AdditiveAttention(
        **dict(unit.sizes, num_heads=1), out_dims=width, expansion=unit.settings['num_heads']
    )
    rows = {
        'w_g': 'score',
        'to_query.': 'query.',
        'to_key.': 'key.',
        'Proj.': 'mixed_proj.',
        'final.': 'proj.',
    }
    unit.load(attention, rows)
    unit.assert_same(attention)


@of_files('mobilevitv2')
def test_mobilevitv2(unit):
    attention = SeparableAttention(**unit.sizes, patch_size=unit.settings['patch'])
    unit.load(attention, {'qkv_proj.block.conv.': 'qkv.', 'out_proj.block.conv.': 'proj.'})
    unit.assert_same(attention)


@of_files('mhla')
def test_mhla(unit):
    settings = unit.settings
    grid = settings['H'] // settings['window']
    mixture = dict(grid=grid, transform=settings['transform'], exp_sigma=settings['exp_sigma'])
    attention = MHLAAttention(
        **unit.sizes,
        **mixture,
        normalizer='blocks',
        pre_norm=True,
        qk_norm=settings['qk_norm'],
        qkv_bias=False,
    )
    torch.testing.assert_close(attention.mixture.data, unit.tensors('in:')['initial_mix'])
    rows = {
        'norm.': 'norm.',
        'to_qkv.': 'qkv.',
        'piece_attn.conv.weight': 'mixture',
        'to_out.0.': 'proj.',
        **LEPE,
    }
    unit.load(attention, rows)
    unit.assert_same(attention)


@of_files('ttt', 'ttt_rope')
def test_test_time_training(unit):
    attention = TTTAttention(**unit.sizes, rope=unit.settings.get('rope', False))
    unit.load(attention, TTT)
    unit.assert_same(attention)


@of_files('circulant', 'circulant_odd')
def test_circulant(unit):
    attention = CirculantAttention(**unit.sizes)
    unit.load(attention, CIRCULANT)
    unit.assert_same(attention)


@of_files('l2vit')
def test_l2vit(unit):
    attention = L2ViTAttention(**unit.sizes)
    unit.load(attention, {**LINEARS, 'temperature': 'temperature'})
    unit.assert_same(attention)


@of_files('sana')
def test_sana(unit):
    attention = SANAAttention(
        **unit.sizes,
        qk_norm=unit.settings['qk_norm'],
        norm_eps=unit.settings['norm_eps'],
        eps=unit.settings['eps'],
    )
    unit.load(attention, LINEARS)
    unit.assert_same(attention)


@of_files('psa_parallel', 'psa_sequential')
def test_polarized_self_attention(unit):
    layout = unit.name.replace('psa_', '')
    attention = PolarizedAttention(**unit.sizes, softmax_over='tokens', layout=layout)
    rows = {
        'conv_q_right.': 'score.',
        'conv_v_right.': 'value.',
        'conv_up.': 'up.',
        'conv_q_left.': 'mean.',
        'conv_v_left.': 'token.',
    }
    unit.load(attention, rows)
    unit.assert_same(attention)


@of_files('ecoformer')
def test_ecoformer(unit):
    attention = EcoFormerAttention(
        **unit.sizes,
        offset='own',
        num_bits=unit.settings['nbits'],
        num_anchors=unit.settings['m'],
    )
    rows = {
        'to_qk.': 'qkv.',
        'to_v.': 'qkv.',
        'fast_attention.ksh.A': 'directions',
        'fast_attention.ksh.mvec': 'means',
        'fast_attention.ksh.anchor': 'anchors',
        'proj.': 'proj.',
    }
    unit.load(attention, rows)
    unit.assert_same(attention)


@of_files('favit')
def test_favit(unit):
    attention = FaViTAttention(**unit.sizes, average='runs', sr_ratio=unit.settings['sr_ratio'])
    rows = {
        'q.': 'q.',
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
        'proj.': 'proj.',
    }
    unit.load(attention, rows)
    unit.assert_same(attention)
