"""Statistics of attention matrices at their ends, and the sizes of the terms of a block."""

import math

import numpy as np
import pytest
import torch
from conftest import quiet_init
from mmengine.registry import MODELS

from mmlaplace.analysis import attention_statistics
from mmlaplace.analysis.recording import mixed_by
from mmlaplace.lab.side_by_side import attention_study
from mmlaplace.models import BaseAttention


def test_an_identity_and_uniform_weights_are_the_two_ends_of_every_statistic():
    shape = (16, 16)
    alone = attention_statistics.statistics_of(torch.eye(256)[None], shape, shape)
    assert (alone.entropy, alone.sharpness, alone.rank, alone.near) == (0, 1, 1, 1)
    assert alone.row_distance == pytest.approx(1)
    same = attention_statistics.statistics_of(torch.ones(1, 256, 256) / 256, shape, shape)
    assert same.entropy == pytest.approx(1) and same.rank == 1 / 256
    # Sums of 256 shares in fp64 leave 1e-16 each.
    assert same.row_distance == pytest.approx(0, abs=1e-12)
    assert same.near + same.middle + same.far == pytest.approx(1)


def test_negative_weights_and_row_sums_are_seen():
    rows = torch.tensor([[2.0, -1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 2.0]])
    found = attention_statistics.statistics_of(rows[None], (1, 3), (1, 3))
    assert found.row_sum == pytest.approx(5 / 3)
    assert found.row_sum_deviation == pytest.approx(np.std([1, 0, 4]))
    assert found.negative == pytest.approx(1 / 9)  # a third of one row in three
    assert all(math.isfinite(value) for value in found)  # despite a row of zeros


def test_the_terms_of_a_block_are_those_of_its_sum():
    cfg = attention_study.backbone_cfg('laplacianformer', dict(type='SoftmaxAttention'), 64)
    backbone = MODELS.build(cfg).eval()
    quiet_init(backbone)
    image, size = torch.randn(1, 3, 64, 64), attention_statistics.root_mean_square
    (first, *_) = attention_statistics.term_sizes(backbone, [image])
    mixed = next(mixed_by(backbone, BaseAttention, image))
    with torch.no_grad():
        local = mixed.attention.lepe(mixed.attention.merge_heads(mixed.v), mixed.hw_shape)
    assert first['attention'] == 'stages.0.blocks.0.attn'
    assert first['local'] == pytest.approx(size(local), rel=1e-5)
    assert first['values'] == pytest.approx(size(mixed.v), rel=1e-5)
    # Weights that sum to one make no value larger than the largest.
    assert 0 < first['mixed'] <= mixed.v.abs().max()
