"""The tables of rotary positions: made once for a map size, and never of a wrong kind."""

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from mmlaplace.models import LaplacianAttention
from mmlaplace.models.layers import RotaryEmbedding2D, position


def test_blocks_share_one_table_for_a_map_size():
    x = torch.randn(1, 2, 15, 16)
    first, second = (RotaryEmbedding2D(16).table(x, (3, 5)) for _ in range(2))
    assert first is second
    assert RotaryEmbedding2D(16).table(x, (5, 3)) is not first
    assert RotaryEmbedding2D(16).table(x.double(), (3, 5)).dtype == torch.float64


def test_halves_turn_by_angles_in_fp32():
    assert RotaryEmbedding2D(16).table(torch.randn(1, 2, 15, 16).half(), (3, 5)).dtype == (
        torch.float32
    )


def test_a_table_from_inference_mode_serves_in_training():
    position._kept_table.cache_clear()
    attention, x = LaplacianAttention(16, 2, (3, 5)), torch.randn(1, 15, 16)
    with torch.inference_mode():
        attention(x, (3, 5))
    attention(x, (3, 5)).sum().backward()
    assert attention.qkv.weight.grad.isfinite().all()


def test_a_table_of_fake_tensors_is_not_kept():
    position._kept_table.cache_clear()
    rotary = RotaryEmbedding2D(16)
    with FakeTensorMode():
        assert isinstance(rotary.table(torch.randn(1, 2, 15, 16), (3, 5)), FakeTensor)
    meta = rotary.table(torch.randn(1, 2, 15, 16, device='meta'), (3, 5))
    real = rotary.table(torch.randn(1, 2, 15, 16), (3, 5))
    assert meta.is_meta and type(real) is torch.Tensor and not real.is_meta


def test_a_captured_cuda_graph_makes_its_own_table(monkeypatch):
    # The cache forgets the one of another size, whose memory a later replay would read.
    rotary, x = RotaryEmbedding2D(16), torch.randn(1, 2, 15, 16)
    kept = rotary.table(x, (3, 5))
    monkeypatch.setattr(position, 'is_capturing', lambda tensor: True)
    own = rotary.table(x, (3, 5))
    assert own is not kept and torch.equal(own, kept)
    monkeypatch.undo()
    assert rotary.table(x, (3, 5)) is kept and not position.is_capturing(x)


def test_a_head_without_pairs_stays_as_it_is():
    x = torch.randn(1, 2, 15, 3)
    assert torch.equal(RotaryEmbedding2D(3)(x, (3, 5)), x)
    assert LaplacianAttention(6, 2, (3, 5))(torch.randn(1, 15, 6), (3, 5)).shape == (1, 15, 6)
