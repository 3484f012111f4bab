"""The sequence model: padding changes nothing, whatever the attention."""

import pytest
import torch
from conftest import quiet_init, registered

from mmlaplace.lab.lra import SequenceEncoder, TokenPreprocessor
from mmlaplace.models import BaseAttention

ATTENTIONS = registered(BaseAttention)
SMALL = dict(num_embeddings=20, max_length=64)
SOFTMAX = dict(type='SoftmaxAttention')


def build(attn_cfg=SOFTMAX, **options) -> SequenceEncoder:
    encoder = SequenceEncoder(**{**SMALL, **options}, attn_cfg=attn_cfg)
    quiet_init(encoder)
    return encoder.eval().double()


def ids_of(*lengths: int) -> list:
    return [torch.randint(1, 20, (1, length)) for length in lengths]


def padded(sequences: list, to: int) -> torch.Tensor:
    return TokenPreprocessor(pad_to=to)(dict(inputs=sequences))['inputs']


@pytest.mark.sampled(24)
@pytest.mark.parametrize('kind', ATTENTIONS)
@pytest.mark.parametrize('pool', ['mean', 'padded_mean'])
def test_padding_changes_nothing_with_any_attention(kind, pool):
    encoder = build(dict(type=kind), pool=pool)
    sequences = ids_of(7, 30, 30, 1)
    together = encoder(padded(sequences, 64))[0]
    assert torch.isfinite(together).all()
    for sequence, found in zip(sequences, together):
        alone = encoder(sequence[None])[0][0]
        # Sums of the same numbers in fp64, in another order.
        torch.testing.assert_close(found, alone, atol=1e-10, rtol=0)
    (together * torch.randn(64)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())


def with_options(ids, *options) -> list:
    """The results of encoders of the same weights and other options."""
    encoders = [build(**each) for each in options]
    for encoder in encoders:
        encoder.load_state_dict(encoders[0].state_dict())
    return [encoder(ids)[0] for encoder in encoders]


def test_a_mask_gives_the_result_of_cutting_and_padding_that_is_kept_changes_it():
    ids = padded(ids_of(7, 30, 30, 1), 40)
    cut, mask, keep = with_options(ids, {}, dict(padding='mask'), dict(padding='keep'))
    torch.testing.assert_close(mask, cut, atol=1e-10, rtol=0)
    assert not torch.allclose(keep, cut, atol=1e-6)
    cut, keep = with_options(padded(ids_of(9), 9), {}, dict(padding='keep'))
    torch.testing.assert_close(keep, cut, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ('attn_cfg', 'reason'),
    [
        (dict(type='PolaAttention'), 'PolaAttention takes no mask'),
        (dict(SOFTMAX, lepe_kernel=3), r'convolution of padded values \(lepe_kernel=3\)'),
        (dict(SOFTMAX, key_positions=True), 'stretches key_positions'),
        (dict(SOFTMAX, relative_bias=True), 'stretches its relative_bias'),
    ],
)
def test_an_attention_that_a_mask_does_not_suit_is_refused(attn_cfg, reason):
    with pytest.raises(ValueError, match=rf"{reason}.*; take padding='cut'"):
        build(attn_cfg, padding='mask')


def test_padding_may_be_anywhere():
    encoder = build()
    ids = torch.tensor([[[0, 5, 0, 7, 8, 0]], [[1, 2, 3, 0, 0, 0]]])
    found = encoder(ids)[0]
    # A softmax of the tokens alone, which keep the positions that they had.
    x = encoder.embedding(ids[0, 0, [1, 3, 4]]) + encoder.positions(torch.tensor([1, 3, 4]))
    x = x[None]
    for block in encoder.blocks:
        x = block(x, None)
    torch.testing.assert_close(found[0], encoder.norm(x).mean(1)[0], atol=1e-10, rtol=0)


def test_no_id_is_padding_without_a_padding_id():
    encoder, ids = build(padding_id=None), padded(ids_of(9), 20)
    before = encoder(ids)[0]
    encoder.embedding.weight.data[0] += torch.randn(64)
    assert not torch.allclose(encoder(ids)[0], before, atol=1e-6)


def test_the_padded_mean_is_a_share_of_the_mean():
    mean, shared = with_options(padded(ids_of(7, 30), 40), {}, dict(pool='padded_mean'))
    lengths = torch.tensor([[7.0], [30.0]], dtype=torch.float64)
    # max_length is 64.
    torch.testing.assert_close(shared * 64, mean * lengths, atol=1e-9, rtol=0)


def test_a_pair_shares_the_encoder_and_joins_four_vectors():
    encoder = build(dict(type='LinearAttention'))
    one, two = padded(ids_of(7, 30), 32)
    a, b = (encoder(ids[None])[0] for ids in (one, two))
    found = encoder(torch.stack([torch.cat([one, two])]))[0]
    expected = torch.cat([a, b, a * b, a - b], dim=1)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_the_model_of_retrieval_has_the_parameters_of_the_benchmark():
    encoder, head = SequenceEncoder(512, 4096, attn_cfg=SOFTMAX), 256 * 128 + 128 + 128 * 2 + 2
    # As computed from the description of Skyformer's code.
    assert sum(p.numel() for p in encoder.parameters()) + head == 395_138


@pytest.mark.parametrize(
    ('call', 'quoted'),
    [
        (lambda: build()(torch.ones(1, 1, 65, dtype=torch.long)), '65 tokens, .*=64'),
        (lambda: padded(ids_of(9), 8), '9 tokens, more than pad_to=8'),
        (lambda: build(padding='none'), "padding must be one of .*, got 'none'"),
        (lambda: build(pool='none'), "pool must be one of .*, got 'none'"),
        (lambda: build(pixel_map=(4, 4)), r'\(4, 4\) has 16 pixels, and max_length is 64'),
        (lambda: build(embed_dims=66, pixel_map=(8, 8)), 'got 66'),
        (lambda: build(dict(num_landmarks=16)), r"such as dict\(type='Pola.*num_landmarks"),
        (lambda: TokenPreprocessor(batch_augments=dict(augments='Mixup')), 'batch_augments'),
    ],
)
def test_values_that_do_not_fit_are_quoted(call, quoted):
    with pytest.raises(ValueError, match=quoted):
        call()


def test_positions_of_a_picture_start_alike_where_pixels_are_near():
    encoder = SequenceEncoder(**SMALL, attn_cfg=SOFTMAX, pixel_map=(4, 16))
    table = encoder.positions.weight.detach().view(4, 16, 64)
    assert table.requires_grad is False and encoder.positions.weight.requires_grad
    apart = (table - table[1, 5]).norm(dim=-1)
    torch.testing.assert_close(apart[1, 6], apart[2, 5])  # a step along a row or a column
    assert 0 == apart[1, 5] < apart[1, 6] < apart[1, 7] < apart[1, 9]
