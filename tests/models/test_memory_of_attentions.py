"""What attentions keep in memory: tensors that grow as the tokens, or refused matrices of pairs."""

import pytest
import torch
from mmengine.registry import MODELS
from test_attentions import CASES, each

from mmlaplace.lab.compare.watching import Watch

# All others in the registry are linear, under all options that the contract is tested with.
# Reformer chooses among N / b buckets.
QUADRATIC = (
    *[dict(type=f'{name}Attention')
      for name in ('Kernel', 'Softmax', 'ScaledCosine', 'FaViT', 'Reformer')],
    dict(type='CastlingAttention', sparse_softmax=True),
    *[dict(type=f'{name}Attention', form='direct') for name in ('TaylorShift', 'Based')],
    # The number of landmarks grows with the map.
    *[dict(type=f'{name}Attention', pool_ratio=2) for name in ('Laplacian', 'SOFT')],
)  # fmt: skip
LINEAR = [cfg for cfg in CASES if not any(one.items() <= cfg.items() for one in QUADRATIC)]


def build(input_resolution, embed_dims=16, **cfg):
    sizes = dict(embed_dims=embed_dims, num_heads=2, input_resolution=input_resolution)
    return MODELS.build(cfg | sizes).eval()


def largest(cfg, resolution, side):
    attention = build(resolution or (side, side), **cfg)
    x = torch.randn(1, side * side, 16, requires_grad=True)
    with Watch('', torch.Tensor.numel) as watch:
        attention(x, (side, side)).sum().backward()
    return watch.largest


@pytest.mark.sampled(3)
@each(LINEAR)
@pytest.mark.parametrize('resolution', [None, (7, 7)], ids=['of its map', 'of another map'])
def test_tensors_of_linear_attentions_grow_as_the_tokens(cfg, resolution):
    small, middle, large = (largest(cfg, resolution, side) for side in (16, 32, 64))
    assert middle <= 4 * small and large <= 4 * middle
    assert middle < 1024**2 / 4 and large < 4096**2 / 16


@pytest.mark.parametrize(('name', 'options'), [
    ('Kernel', {}), ('TaylorShift', dict(form='direct')), ('Based', dict(form='direct')),
    ('Castling', dict(sparse_softmax=True)), ('Reformer', dict(bucket_size=160 * 160)),
    ('Reformer', dict(form='pairs')), ('Softmax', dict(relative_bias=True)),
])  # fmt: skip
def test_too_many_pairs_are_refused_before_they_are_allocated(name, options):
    attention = build((4, 4), 8, type=f'{name}Attention', **options)
    images = '1 image' if name == 'Softmax' else '3 images'  # whose bias is the same for all
    tokens = torch.zeros(1, 1, 1, 4, dtype=torch.float16).expand(3, 2, 160 * 160, 4)
    quoted = rf'{images} x 2 heads.*15.7 GB.*4 GB'
    with Watch('', torch.Tensor.numel) as watch, pytest.raises(ValueError, match=quoted):
        attention.mix(tokens, tokens, tokens, (160, 160))
    assert watch.largest <= tokens.numel()
