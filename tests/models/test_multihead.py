"""The mixing rules in the place of ``torch.nn.MultiheadAttention``: which can, and what they do."""

import copy
import pickle
import re

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, quiet_init, registered
from mmengine.config import Config
from mmengine.model import BaseModule, Sequential
from mmengine.registry import MODELS, DefaultScope
from onnx_files import assert_alike, session, to_onnx
from torch import nn

from mmlaplace.models import BaseAttention, LinearMultiheadAttention, swap_multihead_attention
from mmlaplace.models.mixing_rule import WITHOUT_MAP
from mmlaplace.models.pyramid.options import takes

NAMES = registered(BaseAttention)
# Of sums in another order, in fp64.
EXACT = dict(atol=1e-10, rtol=1e-8)
C, HEADS, N = 32, 2, 60


def built(name, **options):
    module = LinearMultiheadAttention(
        C, HEADS, batch_first=True, attn_cfg=dict(type=name, input_resolution=(N, 1)), **options
    )
    nn.init.normal_(module.in_proj_bias, std=0.1)
    return module.double().eval()


def same_attention(cls, module):
    """The attention itself, with the weights of a module."""
    frame = {key: value for key, value in WITHOUT_MAP.items() if takes(cls, key)}
    options = {**frame, 'proj': True, 'qkv_bias': True}
    own = cls(C, HEADS, input_resolution=(N, 1), **options).double().eval()
    rows = dict(zip('qkv', module.in_proj_weight.chunk(3)))
    biases = dict(zip('qkv', module.in_proj_bias.chunk(3)))
    parts = 'qv' if own.frame.qkv == 'shared_qk' else 'qkv'
    gate = [module.gate] if own.frame.gate else []
    state = {
        **module.attn.state_dict(),
        'qkv.weight': torch.cat([rows[p] for p in parts] + [g.weight for g in gate]),
        'qkv.bias': torch.cat([biases[p] for p in parts] + [g.bias for g in gate]),
        'proj.weight': module.out_proj.weight,
        'proj.bias': module.out_proj.bias,
    }
    own.load_state_dict(state)
    return own


@torch.no_grad()
@pytest.mark.parametrize('name', NAMES)
def test_an_attention_mixes_sequences_and_padding_or_says_why_not(name):
    cls = MODELS.get(name)
    x = torch.randn(3, N, C, dtype=torch.float64)
    if cls.no_multihead:
        with pytest.raises(ValueError, match=re.escape(cls.no_multihead)):
            built(name)
        return
    module = built(name)
    own = same_attention(cls, module)
    out, _ = module(x, x, x)
    torch.testing.assert_close(out, own(x, (N, 1)), **EXACT)

    # Padding may be anywhere, and a sequence is what it is alone.
    padding = torch.zeros(3, N, dtype=torch.bool)
    padding[1, 55:] = padding[2, 3:20] = True
    masked, _ = module(x, x, x, key_padding_mask=padding)
    for image, shown, result in zip(x, ~padding, masked):
        alone = own(image[None, shown], (int(shown.sum()), 1))[0]
        torch.testing.assert_close(result[shown], alone, **EXACT)

    # One query changes: do others?
    changed = x.clone()
    changed[:, 0] *= 3
    if cls.same_tokens:
        with pytest.raises(ValueError, match=f'{name} needs keys of the tokens of the queries'):
            module(changed, x, x)
    else:
        moved, known = (module(queries, x, x)[0][:, 1:] for queries in (changed, x.clone()))
        assert torch.allclose(moved, known, atol=1e-9) != cls.mixes_queries
        memory = torch.randn(3, 35, C, dtype=torch.float64)
        hidden = torch.arange(35) >= torch.tensor([[35], [20], [35]])
        out, _ = module(x[:, :20], memory, memory, key_padding_mask=hidden)
        assert out.shape == (3, 20, C) and out.isfinite().all()
        alone, _ = module(x[1:2, :20], memory[1:2, :20].clone(), memory[1:2, :20])
        torch.testing.assert_close(out[1:2], alone, **EXACT)


@torch.no_grad()
def test_softmax_is_that_of_torch_with_all_masks_and_weights():
    sizes = dict(kdim=24, vdim=40)
    theirs = nn.MultiheadAttention(C, HEADS, **sizes).eval()
    nn.init.normal_(theirs.in_proj_bias)
    ours = LinearMultiheadAttention.from_multihead_attention(theirs, dict(type='SoftmaxAttention'))
    q, k, v = torch.randn(7, 3, C), torch.randn(9, 3, 24), torch.randn(9, 3, 40)
    padding, pairs = torch.rand(3, 9) < 0.2, torch.rand(6, 7, 9) < 0.2
    causal = torch.ones(7, 9).tril() == 0
    low = torch.finfo(torch.float32).min
    floats = torch.randn(3, 9).masked_fill(padding, low), torch.randn(7, 9)
    for options in (
        {},
        dict(attn_mask=pairs[0]),
        dict(key_padding_mask=padding, attn_mask=pairs, average_attn_weights=False),
        dict(key_padding_mask=floats[0], attn_mask=floats[1]),
        dict(attn_mask=causal, need_weights=False, is_causal=True),
    ):
        torch.testing.assert_close(ours(q, k, v, **options), theirs(q, k, v, **options))
    one = [x[:, 0] for x in (q, k, v)]
    torch.testing.assert_close(ours(*one, padding[0]), theirs(*one, padding[0]))


@torch.no_grad()
@pytest.mark.parametrize('average', [True, False])
@pytest.mark.parametrize('hide', ['padding', 'pairs', 'floats'])
def test_a_query_that_sees_no_key_has_no_values_and_no_weights_where_torch_has_nan(hide, average):
    theirs = nn.MultiheadAttention(C, HEADS, batch_first=True).eval()
    nn.init.normal_(theirs.out_proj.bias)
    ours = LinearMultiheadAttention.from_multihead_attention(theirs, dict(type='SoftmaxAttention'))
    q, k = torch.randn(2, 4, C), torch.randn(2, 5, C)
    hidden = torch.zeros(2, HEADS, 4, 5, dtype=torch.bool)  # by image, head, query and key
    if hide == 'padding':
        hidden[1] = True
        options = dict(key_padding_mask=hidden[:, 0, 0])
    else:
        hidden[0, 1, 2] = True
        mask = hidden.flatten(0, 1)
        floats = torch.zeros(mask.shape).masked_fill(mask, float('-inf'))
        options = dict(attn_mask=mask if hide == 'pairs' else floats)
    out, weights = ours(q, k, k, average_attn_weights=average, **options)
    plain, _ = theirs(q, k, k, need_weights=False, **options)
    torch.testing.assert_close(out, plain)
    broken, expected = theirs(q, k, k, average_attn_weights=average, **options)
    assert broken.isnan().any() and expected.isnan().any()
    if average:  # of the heads that see a key, over all heads
        _, alone = theirs(q, k, k, average_attn_weights=False, **options)
        expected = alone.nan_to_num().mean(1)
    torch.testing.assert_close(weights, expected.nan_to_num())


@pytest.mark.parametrize('sizes', [{}, dict(vdim=40)], ids=['one weight', 'three weights'])
@pytest.mark.parametrize('name', [n for n in NAMES if not MODELS.get(n).no_multihead])
def test_every_parameter_gets_a_gradient_in_every_batch(name, sizes):
    padding = torch.zeros(2, 9, dtype=torch.bool)
    shared = [dict(qkv='shared_qk')] * takes(MODELS.get(name), 'qkv')
    for options in ({}, *shared):
        attn_cfg = dict(type=name, **options)
        module = LinearMultiheadAttention(
            C, HEADS, batch_first=True, attn_cfg=attn_cfg, self_attention=True, **sizes
        )
        for hidden, tokens in ((padding, 9), (padding | True, 9), (padding[:, :0], 0)):
            x, value = torch.randn(2, tokens, C), torch.randn(2, tokens, module.vdim)
            module.zero_grad()
            module(x, x, value, hidden)[0].sum().backward()
            assert [key for key, p in module.named_parameters() if p.grad is None] == []


@pytest.mark.filterwarnings('ignore')
def test_a_batch_of_padding_alone_does_not_stop_distributed_training(tmp_path):
    module = LinearMultiheadAttention(C, HEADS, attn_cfg=dict(type='PolaAttention'))
    x, padding = torch.randn(9, 2, C), torch.ones(2, 9, dtype=torch.bool)
    dist.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(module)
        for hidden in (padding, ~padding, padding):
            model(x, x, x, hidden)[0].sum().backward()
    finally:
        dist.destroy_process_group()
    assert module.in_proj_weight.grad.abs().sum() > 0  # of the batch in the middle


def test_a_sequence_of_padding_alone_gets_the_bias():
    module = built('RALAAttention', self_attention=False)
    x, memory = torch.randn(2, 2, N, C, dtype=torch.float64)
    out, weights = module(x, memory, memory, torch.tensor([[False], [True]]).expand(2, N))
    assert weights is None
    floats = torch.tensor([[0.0], [float('-inf')]]).expand(2, N)
    torch.testing.assert_close(module(x, memory, memory, floats)[0], out)
    torch.testing.assert_close(out[1], module.out_proj.bias.expand(N, -1))


@pytest.mark.parametrize('name', ['PolaAttention', 'RALAAttention', 'LaplacianAttention'])
def test_torchs_encoder_runs_the_rule_in_eval_mode_too(name):
    layer = nn.TransformerEncoderLayer(C, HEADS, 64, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=2).eval()
    x, padding = torch.randn(2, N, C), torch.arange(N) >= torch.tensor([[N], [50]])
    with torch.no_grad():
        softmax = encoder(x, src_key_padding_mask=padding)
    by_hand = copy.deepcopy(encoder)
    assert len(swap_multihead_attention(encoder, dict(type=name))) == 2
    with torch.no_grad():
        masked = encoder(x, src_key_padding_mask=padding)
    # With gradients torch has no path of its own.
    torch.testing.assert_close(masked, encoder(x, src_key_padding_mask=padding).detach())
    assert not torch.allclose(masked[~padding], softmax[~padding], atol=1e-3)
    torch.testing.assert_close(masked[1, :50], encoder(x[1:, :50])[0].detach())
    # Without swap_multihead_attention, torch makes nested tensors, and it does not go unnoticed.
    by_hand.layers[0].self_attn = encoder.layers[0].self_attn
    with pytest.raises(ValueError, match='set its use_nested_tensor to False'), torch.no_grad():
        by_hand(x, src_key_padding_mask=padding)


def test_an_encoder_outside_of_the_part_stays_as_it_was():
    layer = nn.TransformerEncoderLayer(C, HEADS, 64, dropout=0.0, batch_first=True)
    encoders = {name: nn.TransformerEncoder(layer, num_layers=2) for name in ('text', 'image')}
    model = nn.ModuleDict(encoders).eval()
    x, padding = torch.randn(2, 5, C), torch.arange(5) >= torch.tensor([[5], [3]])
    with torch.no_grad():
        before = model['text'](x, src_key_padding_mask=padding)
        places = swap_multihead_attention(model, dict(type='PolaAttention'), 'image.layers.1')
        assert places == ['image.layers.1.self_attn']
        # torch has zeros at places of padding, as it makes nested tensors.
        torch.testing.assert_close(model['text'](x, src_key_padding_mask=padding), before)
        assert model['image'](x, src_key_padding_mask=padding).isfinite().all()


@pytest.mark.parametrize('mode', ['training', 'eval'])
def test_a_softmax_goes_on_with_its_dropout_and_in_its_mode(mode):
    theirs = nn.MultiheadAttention(C, HEADS, dropout=0.5, batch_first=True).train(
        mode == 'training'
    )
    model, x = nn.Sequential(theirs), torch.randn(2, 9, C)
    swap_multihead_attention(model, dict(type='SoftmaxAttention'))
    first, second = (model[0](x, x, x)[0] for _ in range(2))
    if mode == 'training':
        assert (first - second).abs().max() > 0.1  # half of the weights are dropped
    else:
        torch.testing.assert_close(first, second, rtol=0, atol=0)
        torch.testing.assert_close(first, theirs(x, x, x)[0])


def test_weights_of_torch_load_under_their_names():
    theirs = nn.MultiheadAttention(C, HEADS, dropout=0.1, batch_first=True).double()
    theirs.out_proj.requires_grad_(False)
    ours = LinearMultiheadAttention(C, HEADS, batch_first=True)
    ours.load_state_dict(theirs.state_dict())  # a rule without weights: strictly
    copied = LinearMultiheadAttention.from_multihead_attention(theirs)
    assert copied.dropout == 0 and copied.in_proj_weight.dtype == torch.float64
    torch.testing.assert_close(copied.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert not copied.out_proj.weight.requires_grad and copied.in_proj_weight.requires_grad
    gated = LinearMultiheadAttention(C, HEADS, attn_cfg=dict(type='PolaAttention', gate=True))
    own = gated.state_dict().keys() - theirs.state_dict().keys()
    assert own == {'attn.scale', 'attn.power', 'gate.weight', 'gate.bias'}
    nn.utils.parametrizations.spectral_norm(theirs, 'in_proj_weight')
    with pytest.raises(ValueError, match=r"for \['in_proj_weight'\]; remove the parametrization"):
        LinearMultiheadAttention.from_multihead_attention(theirs)


@pytest.mark.parametrize(
    ('options', 'call', 'says'),
    [
        (dict(attn_cfg=dict(type='PolaAttention', lepe_kernel=5)), {}, 'lepe_kernel=5 of PolaAtt'),
        (dict(attn_cfg=dict(type='PolaAttention', alfa=5)), {}, "did you mean 'alpha'"),
        (dict(attn_cfg='PolaAttention'), {}, r"write dict\(type='PolaAttention'\)"),
        (dict(dropout=0.1), {}, 'got dropout=0.1; set'),
        ({}, dict(attn_mask=torch.zeros(6, 6)), 'LinearAttention mixes all keys for all queries'),
        ({}, dict(key_padding_mask=torch.zeros(6, 2)), r'must be \(2, 6\) for a key'),
        ({}, dict(key_padding_mask=torch.rand(2, 6)), 'only 0 and -inf'),
        ({}, dict(key_padding_mask=-torch.rand(2, 6)), 'only 0 and -inf'),
        ({}, dict(value=torch.zeros(2, 5, C)), r'key and value must be of the same tokens'),
        ({}, dict(query=torch.zeros(1, 5, C)), r'of one batch, got \(1, 5, 32\) and \(2, 6, 32\)'),
        (dict(self_attention=True), dict(query=torch.zeros(2, 5, C)), 'set self_attention=False'),
        (
            dict(attn_cfg=dict(type='RALAAttention')),
            dict(query=torch.zeros(2, 6, C), key_padding_mask=torch.zeros(2, 6).bool()),
            'set self_attention to True',
        ),
        (dict(attn_cfg=dict(qkv='shared_qk')), dict(query=torch.zeros(2, 5, C)), "qkv='shared_qk'"),
        (
            dict(attn_cfg=dict(type='SoftmaxAttention')),
            dict(attn_mask=torch.zeros(5, 6)),
            r'must be \(6, 6\) or \(4, 6, 6\), got \(5, 6\)',
        ),
    ],
)
def test_what_it_cannot_take_is_quoted(options, call, says):
    x = torch.zeros(2, 6, C)
    with pytest.raises((ValueError, TypeError), match=says):
        module = LinearMultiheadAttention(C, HEADS, batch_first=True, **options)
        module(**{**dict(query=x, key=x, value=x), **call})


@pytest.mark.parametrize('name', ['PolaAttention', 'EcoFormerAttention', 'SoftmaxAttention'])
def test_autocast_no_images_and_gradients_are_as_in_our_attentions(name):
    module = LinearMultiheadAttention(C, HEADS, batch_first=True, attn_cfg=dict(type=name))
    x, padding = torch.randn(2, 40, C), torch.arange(40) >= torch.tensor([[40], [30]])
    with torch.autocast('cpu', torch.bfloat16):
        rounded, _ = module(x, x, x, padding)
    assert rounded.dtype == torch.bfloat16 and rounded.isfinite().all()
    for some in (x, x[:0], x[:1, :1], x[:, :0]):
        module.zero_grad()
        out, _ = module(some, some, some)
        out.sum().backward()
        assert out.shape == some.shape
        assert not some.shape[1] or all(w.grad.isfinite().all() for w in module.parameters())


@torch.no_grad()
def test_queries_that_are_hashed_are_not_rounded_under_autocast():
    """EcoFormer takes signs of them, some of which would turn."""
    module = LinearMultiheadAttention(
        C, HEADS, batch_first=True, attn_cfg=dict(type='EcoFormerAttention')
    )
    x = torch.randn(4, 200, C)
    exact, _ = module(x, x, x)
    with torch.autocast('cpu', torch.bfloat16):
        rounded, _ = module(x, x, x)
    # Roundings of values and outputs, of 2^-9 each.
    assert (rounded - exact).norm() < 2**-8 * exact.norm()


class Alone(nn.ModuleDict):
    """A model of one attention."""

    def forward(self, x, padding=None):
        return self['attention'](query=x, key=x, value=x, key_padding_mask=padding)[0]


@torch.no_grad()
@pytest.mark.parametrize('name', ['LinearAttention', 'LaplacianAttention'])
@pytest.mark.slow
def test_it_is_exported_without_padding_and_compiled_with_it(name):
    pytest.importorskip('onnxruntime')
    module = LinearMultiheadAttention(C, HEADS, batch_first=True, attn_cfg=dict(type=name)).eval()
    alone, x = Alone(dict(attention=module)), torch.randn(2, 40, C)
    run = session(to_onnx(alone, (x,), dynamic=[{0: 'batch', 1: 'tokens'}]))
    for tokens in (torch.randn(1, 40, C), torch.randn(3, 25, C)):
        assert_alike(run(tokens), alone(tokens))
    if name != 'LinearAttention':  # compiling takes seconds
        return
    padding = torch.arange(40) >= torch.tensor([[40], [30]])
    with pytest.raises(ValueError, match='export it without key_padding_mask'):
        to_onnx(alone, (x, padding))
    graph = torch.fx.symbolic_trace(torch.fx.symbolic_trace(alone))  # in which it is one step
    for other in (torch.compile(alone, backend='eager'), graph):
        torch.testing.assert_close(other(x, padding), alone(x, padding))


def test_detr_of_a_config_has_the_rule_in_its_encoder(monkeypatch):
    pytest.importorskip('mmdet')
    monkeypatch.setenv('BACKBONE', 'laplacianformer-micro')
    cfg = Config.fromfile(ROOT / 'configs/heads/detr-pola-encoder_8xb2-150e_coco.py').model
    cfg.backbone.init_cfg = None
    cfg.encoder.num_layers = cfg.decoder.num_layers = 1
    cfg.attentions['decoder.layers.*.cross_attn'] = dict(type='LinearAttention')
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(copy.deepcopy(cfg)).eval()
    assert [
        type(module.attn).__name__
        for module in model.modules()
        if isinstance(module, LinearMultiheadAttention)
    ] == ['PolaAttention', 'LinearAttention']
    quiet_init(model)
    rule = model.encoder.layers[0].self_attn.attn
    assert not rule.attn.power.any()  # at its start, while DETR fills matrices at random
    assert rule.self_attention and rule.in_proj_weight.std() > 0.03
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is type(model) and again.state_dict().keys() == model.state_dict().keys()
    x, places = torch.randn(2, 2, 30, 256)
    padding = torch.arange(30) >= torch.tensor([[30], [20]])
    out = model.encoder(x, places, padding)
    alone = model.encoder(x[1:, :20], places[1:, :20], None)
    torch.testing.assert_close(out[1:, :20], alone)
    for wrong, match in (({}, "'SOFTT' is not registered"), (['encoder'], 'must be a dict')):
        with pytest.raises(ValueError, match=match):
            MODELS.build(dict(type='ModelWithAttentions', model_type='SOFTT', attentions=wrong))


class Reversed(nn.MultiheadAttention):
    def forward(self, query, key, value, **options):
        return super().forward(query, key.flip(0), value, **options)


class AttendsOnly(BaseModule):
    def __init__(self, of_part=None, init_cfg=None):
        super().__init__(init_cfg)
        self.part = Sequential(nn.MultiheadAttention(C, HEADS), init_cfg=of_part)


@pytest.mark.parametrize('of_a_part', [False, True], ids=['model', 'part'])
def test_what_an_init_cfg_loads_keeps_its_scales(of_a_part, monkeypatch, tmp_path):
    monkeypatch.setitem(MODELS.module_dict, 'AttendsOnly', AttendsOnly)
    attentions = dict(part=dict(type='PolaAttention'))
    cfg = dict(type='ModelWithAttentions', model_type='AttendsOnly', attentions=attentions)
    trained = {name: x + 1 for name, x in MODELS.build(cfg).state_dict().items()}
    torch.save(trained, tmp_path / 'weights.pth')
    start = dict(type='Pretrained', checkpoint=str(tmp_path / 'weights.pth'))
    if of_a_part:
        cfg.update(of_part=dict(start, prefix='part.'))
    else:  # mmengine takes lists too
        cfg.update(init_cfg=[dict(type='Xavier', layer='Linear'), start])
    model = MODELS.build(cfg)
    quiet_init(model)
    torch.testing.assert_close(dict(model.state_dict()), trained, rtol=0, atol=0)


def test_an_attention_of_two_names_stays_one_and_one_alone_is_told():
    one = nn.MultiheadAttention(C, HEADS)
    model = nn.ModuleDict(dict(first=one, second=one))
    assert swap_multihead_attention(model, {}) == ['first', 'second']
    assert model['first'] is model['second']
    assert isinstance(model['first'], LinearMultiheadAttention)
    # One that cannot be replaced leaves the others too.
    some = nn.ModuleList(nn.MultiheadAttention(C, HEADS, add_bias_kv=kv) for kv in (False, True))
    for of, names, said in (
        (nn.MultiheadAttention(C, HEADS), '', 'call LinearMultiheadAttention.from_multihead_att'),
        (some, '', 'add_bias_kv=True'),
        (model, 'encoders', "no torch.nn.MultiheadAttention in 'encoders'"),
    ):
        with pytest.raises(ValueError, match=said):
            swap_multihead_attention(of, {}, names)
    assert not isinstance(some[0], LinearMultiheadAttention)


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (lambda part: part.register_forward_hook(lambda module, x, out: None), 'hooks'),
        (lambda part: part.register_full_backward_hook(lambda *_: None), 'hooks'),
        (lambda part: part._register_state_dict_hook(lambda *_: None), 'hooks'),
        (lambda part: setattr(part, 'forward', lambda *inputs, **options: inputs), 'another forw'),
        (lambda part: setattr(part, '__class__', Reversed), 'this Reversed has another forward'),
    ],
)
def test_what_a_user_changed_is_not_lost_in_silence(change, said):
    model = nn.ModuleList(nn.MultiheadAttention(C, HEADS) for _ in range(2))
    change(model[1])
    with pytest.raises(ValueError, match=f'{said}.* swap first'):
        swap_multihead_attention(model, {})
    assert type(model[0]) is nn.MultiheadAttention


@torch.no_grad()
def test_torchs_decoder_takes_the_rule_for_other_tokens_of_as_many():
    model = nn.Transformer(C, HEADS, 1, 1, 64, batch_first=True).eval()
    place = 'decoder.layers.*.multihead_attn'
    assert len(swap_multihead_attention(model, dict(type='RALAAttention'), place)) == 1
    source, target = torch.randn(2, 2, 20, C)
    hidden = torch.arange(20) >= torch.tensor([[20], [15]])
    masks = dict(src_key_padding_mask=hidden, memory_key_padding_mask=hidden)
    causal = nn.Transformer.generate_square_subsequent_mask(20)
    out = model(source, target, tgt_mask=causal, **masks)
    source[1, 15:] = 9
    other = model(source, target, tgt_mask=causal, **masks)
    torch.testing.assert_close(out, other)
