"""Recordings of attentions change nothing; times come in rounds, memory in bytes.

Statistics of attention matrices are tested at their ends, and the sizes of the terms of a block.
"""

import math
import subprocess
import sys
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import micro_config, quiet_init
from mmengine.registry import MODELS
from PIL import Image

from mmlaplace.analysis import attention_statistics, measuring, recording
from mmlaplace.analysis.measuring import bytes_of, model_job, process_memory, tensor_memory
from mmlaplace.analysis.recording import mixed_by, normalized, photographs, rgb, steps_watched
from mmlaplace.commands.command_line import build_backbone
from mmlaplace.lab.side_by_side import attention_study
from mmlaplace.models import BaseAttention, LaplacianAttention


def test_every_attention_is_recorded_in_order_and_left_as_it_was():
    backbone = build_backbone(micro_config('laplacianformer'))
    image = torch.randn(1, 3, 40, 48)
    before, seen = backbone(image), mock.Mock()
    with steps_watched(backbone, LaplacianAttention, ('mix',), seen):  # one inside of another
        found = list(mixed_by(backbone, LaplacianAttention, image))
    assert seen.call_count == len(found)
    places = [(i, j) for i, s in enumerate(backbone.stages) for j in range(len(s['blocks']))]
    assert [(mixed.stage, mixed.block) for mixed in found] == places
    assert found[0].hw_shape == found[0].map_shape == (10, 12)
    assert found[0].q.shape[2] == 120
    assert not any('mix' in vars(mixed.attention) for mixed in found)
    assert all(map(torch.equal, before, backbone(image)))


def test_grey_photographs_keep_their_range_or_are_refused():
    values = np.array([[0, 100], [200, 252]])
    for pixels in (values.astype(np.int32), (values << 8).astype(np.uint16)):
        assert np.array(rgb(Image.fromarray(pixels)))[..., 0].tolist() == values.tolist()
    for wrong in (values.astype(np.float32) / 255, (values << 16).astype(np.int32)):
        with pytest.raises(ValueError, match='save it with 8 or 16 bits'):
            rgb(Image.fromarray(wrong))


def test_photographs_are_of_the_size_asked_for_and_normalised():
    white = Image.new('RGB', (30, 20), 'white')
    expected = (255 - torch.tensor(recording.MEAN)) / torch.tensor(recording.STD)
    all_white = expected[:, None, None].expand(1, 3, 8, 16)
    torch.testing.assert_close(normalized(white, (8, 16)), all_white)
    # As MobileViTv2's, in BGR, and of a grey image.
    red = Image.new('RGB', (4, 4), (255, 0, 51))
    unit = normalized(red, (4, 4), dict(mean=[0.0] * 3, std=[255.0] * 3, bgr_to_rgb=True))
    bgr = normalized(red, (4, 4), dict(mean=[10.0, 20.0, 30.0], std=[1.0] * 3, to_rgb=False))
    grey = normalized(white, (4, 4), dict(mean=[127.5], std=[127.5]))
    torch.testing.assert_close(unit[0, :, 0, 0], torch.tensor([1.0, 0.0, 0.2]))
    torch.testing.assert_close(bgr[0, :, 0, 0], torch.tensor([41.0, -20.0, 225.0]))
    assert grey.shape == (1, 1, 4, 4) and (grey == 1).all()
    four = normalized(red, (4, 4), dict(mean=[0.0, 0, 0, 55], std=[1.0, 1, 1, 2]))
    assert four[0, :, 0, 0].tolist() == [255, 0, 51, 100]
    pytest.importorskip('skimage')
    assert [photo.shape for photo in photographs((32, 48))] == [(1, 3, 32, 48)] * 3


CPU = torch.device('cpu')
MEGABYTE = 2**20


def test_jobs_take_turns_and_a_slow_one_sits_out_of_rounds(monkeypatch):
    calls, costs = [], dict(fast=0.1, slow=0.75, slower=100.0)
    jobs = {name: partial(calls.append, name) for name in costs}

    def by_a_clock_without_noise(job, device):
        job()
        return costs[job.args[0]]

    monkeypatch.setattr(measuring, 'seconds_of', by_a_clock_without_noise)
    seconds = measuring.interleave(jobs, rounds=12, device=CPU, budget=3.0)
    assert seconds == {'fast': [0.1] * 12, 'slow': [0.75] * 4, 'slower': [100.0] * 3}
    timed = calls[6:]  # two runs of each come first
    # A slow job's runs are spread over the rounds, of which the first 4 have 8 runs at most.
    assert 'slower' in timed[:4] and 'slower' in timed[8:]


def test_the_memory_of_tensors_is_exact_and_leaves_out_what_is_returned():
    def job():
        made = torch.zeros(8)
        torch.zeros(MEGABYTE // 4)  # fp32, 1 MB of scratch
        return (made,)

    assert tensor_memory(job, CPU) == MEGABYTE
    with pytest.raises(ValueError, match="must be 'cpu' or 'cuda' to be timed, got 'mps'"):
        measuring.seconds_of(job, torch.device('mps'))
    assert tensor_memory(lambda: (torch.zeros(MEGABYTE),), CPU) == 0
    made = measuring.tensors_of([(torch.zeros(3), [torch.zeros(2, dtype=torch.float64)])])
    assert bytes_of(made) == 28


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
@pytest.mark.slow
def test_measuring_memory_without_a_gpu_prints_no_error_of_the_profiler():
    """In a process of its own, as the profiler looks for a GPU once."""
    code = (
        'import torch; from mmlaplace.analysis.measuring import tensor_memory; '
        "tensor_memory(lambda: (torch.zeros(8),), torch.device('cpu'))"
    )
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.returncode == 0 and 'gpuGetDeviceCount' not in result.stderr


def test_the_memory_of_the_process_has_scratch_of_any_library():
    def job():
        np.ones(64 * MEGABYTE, np.uint8)
        return ()

    # Linux counts resident pages to some 64 a core, and other threads free memory meanwhile: 9 MB
    # were seen in a process that had run thousands of tests.
    assert process_memory(job) == pytest.approx(64 * MEGABYTE, rel=0.25)


@pytest.mark.parametrize('dtype', [None, torch.bfloat16])
def test_a_pass_of_a_model_has_gradients_to_train_alone(dtype):
    """Under autocast it is in its dtype, and has fp32 gradients, which it frees at its end."""
    model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    model.register_forward_hook(lambda module, inputs, out: (out,))  # as the backbones do
    (made,) = model_job(model, x, train=False, dtype=dtype)()
    assert made.dtype == (dtype or torch.float32) and model.weight.grad is None
    assert not made.requires_grad
    grads: list = []
    model.weight.register_hook(grads.append)
    assert model_job(model, x, train=True, dtype=dtype)() == ()
    assert [grad.dtype for grad in grads] == [torch.float32] and model.weight.grad is None


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
