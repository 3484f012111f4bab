"""A NaN in one image stays in its image, and no forward waits for a value of the device."""

import pytest
import torch
from test_backbones import BACKBONES, build
from torch.utils._python_dispatch import TorchDispatchMode

from mmlaplace.models import LaplacianAttention

needs_compile = pytest.mark.skipif(
    not hasattr(torch.amp, 'is_autocast_available'),
    reason='before torch 2.4, torch.compile traces no context managers of libraries',
)
HOST_READS = {'_local_scalar_dense', 'item', 'is_nonzero', 'equal', 'nonzero'}  # of a GPU: waits


def check_that_nan_stays(forward, local=False):
    images = torch.randn(3, 3, 64, 64)
    spoilt = images.clone()
    spoilt[1, 0, 5, 7] = float('nan')
    with torch.no_grad():
        clean, outs = forward(images), forward(spoilt)
    for before, after in zip(clean, outs):
        assert not before.isnan().any()
        # Swin's windows are a part of the map in its first stages.
        assert after[1].isnan().any() if local else after[1].isnan().all()
        # The same kernels on the same values; products of a batch may be cut into other blocks.
        torch.testing.assert_close(after[[0, 2]], before[[0, 2]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('name', BACKBONES)
def test_a_nan_pixel_spoils_its_image_alone(name):
    check_that_nan_stays(build(name).eval(), local=name == 'Swin')


@pytest.mark.parametrize('solver', ['newton_schulz', 'cholesky', 'conjugate_gradient'])
def test_a_nan_pixel_spoils_its_image_alone_with_every_solver(solver):
    attn_cfg = dict(type='LaplacianAttention', solver=solver)
    check_that_nan_stays(build('LaplacianFormer', attn_cfg=attn_cfg).eval())


@pytest.mark.parametrize('solver', ['svd', 'cholesky'])
def test_a_nan_pixel_spoils_its_image_alone_with_every_solver_of_soft(solver):
    # Without a ridge, rounding decides which eigenvalues of near landmarks count as zero.
    attn_cfg = dict(solver=solver, ridge=1e-2)
    check_that_nan_stays(build('SOFTPlusPlus', attn_cfg=attn_cfg).eval())


@pytest.mark.slow
@needs_compile
@pytest.mark.parametrize('name', BACKBONES)
def test_a_nan_pixel_spoils_its_image_alone_when_compiled(name):
    # Dynamo's graph as it is: 'aot_eager' takes a minute a backbone and computes the same.
    torch._dynamo.reset()  # it compiles a function, such as a block's, a few times at most
    compiled = torch.compile(build(name).eval(), backend='eager', fullgraph=True)
    check_that_nan_stays(compiled, local=name == 'Swin')


@needs_compile
@pytest.mark.slow
def test_nan_tokens_spoil_their_image_alone_in_inductors_code():
    # The attention by itself: for a backbone, inductor's C++ takes minutes to compile.
    attention = LaplacianAttention(32, 2, (8, 8), num_landmarks=16).eval()
    compiled = torch.compile(attention, fullgraph=True)
    tokens = torch.randn(3, 64, 32)
    spoilt = tokens.clone()
    spoilt[1, 20, 5] = float('nan')
    with torch.no_grad():
        clean, out = compiled(tokens, (8, 8)), compiled(spoilt, (8, 8))
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


class HostReads(TorchDispatchMode):
    """Collects the ops that bring a value of a tensor to Python."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ in HOST_READS:
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize('name', BACKBONES)
def test_a_forward_reads_no_value(name):
    backbone, reads = build(name).eval(), HostReads()
    with torch.no_grad(), reads:
        backbone(torch.randn(2, 3, 64, 64))
    assert reads.found == []


@pytest.mark.parametrize('solver', ['newton_schulz', 'cholesky', 'conjugate_gradient'])
def test_a_step_of_training_reads_no_value_in_the_attention(solver):
    attn_cfg = dict(type='LaplacianAttention', solver=solver)
    backbone, reads = build('LaplacianFormer', attn_cfg=attn_cfg).train(), HostReads()
    with reads:
        backbone(torch.randn(2, 3, 64, 64))[-1].sum().backward()
    assert reads.found == []
