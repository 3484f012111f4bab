"""An FFN computes and refuses what torch's own layers compute and refuse."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmlaplace.models.layers import FFN
from mmlaplace.ops import gelu_ffn

C = 12


class PlainFFN(nn.Module):
    """torch's own functions of the layers of an FFN."""

    def __init__(self, ffn):
        super().__init__()
        self.layers = ffn.layers

    def forward(self, x):
        first, act, _, second, _ = self.layers
        return F.linear(act(F.linear(x, first.weight, first.bias)), second.weight, second.bias)


GELU, TANH = dict(type='GELU'), dict(type='GELU', approximate='tanh')


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of 64 rows for each thread."""
    monkeypatch.setattr(gelu_ffn, 'BLOCK_BYTES', 1)


def ffn_pair(*changes, which=0, act_cfg=GELU):
    ffn = FFN(C, 2, act_cfg=act_cfg)
    for change in changes:
        change(ffn.layers[which])
    return lambda x: ffn(x, (7, 1)), PlainFFN(ffn)


MODES = {
    'training': (torch.enable_grad,),
    'no gradients': (torch.no_grad,),
    'inference': (torch.inference_mode,),
    'fp16 autocast': (torch.no_grad, torch.float16),
    'bf16 autocast': (torch.no_grad, torch.bfloat16),
    'training under autocast': (torch.enable_grad, torch.bfloat16),
}


def outcome(function, x, mode, dtype=None):
    with mode(), torch.autocast('cpu', dtype or torch.bfloat16, enabled=dtype is not None):
        try:
            return function(x)
        except Exception as error:  # which of them is what the tests compare
            return error


def assert_alike(ours, plain, x):
    for name, mode in MODES.items():
        found, expected = (outcome(function, x, *mode) for function in (ours, plain))
        if isinstance(expected, Exception):
            assert type(found) is type(expected), f'{name}: {found!r}, but torch {expected!r}'
            continue
        assert not isinstance(found, Exception), f'{name}: {found!r}'
        assert found.requires_grad == expected.requires_grad, name
        # Two products of order 1 in another order; bf16 and fp16 round inputs and hidden values.
        close = 1e-4 if expected.dtype in (torch.float32, torch.float64) else 0.05
        close = dict(rtol=close, atol=close, msg=f'{name}: %s'.__mod__)
        pair = [out.unbind() if out.is_nested else out for out in (found, expected)]
        torch.testing.assert_close(*pair, equal_nan=True, **close)


normal = torch.randn
DTYPES = (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64)
INPUTS = {
    'no axis': lambda: torch.tensor(1.0),
    'one axis': lambda: normal(C),
    'five axes': lambda: normal(2, 1, 3, 1, C),
    'no rows': lambda: normal(2, 0, C),
    'too many channels': lambda: normal(3, C + 1),
    'one channel': lambda: normal(3, 1),
    'NaN': lambda: torch.full((3, C), float('nan')),
    'meta': lambda: normal(3, C).to('meta'),
    'sparse': lambda: normal(3, C).to_sparse(),
    'a leaf': lambda: normal(3, C).requires_grad_(),
    'nested': lambda: torch.nested.nested_tensor([normal(3, C), normal(2, C)]),
    **{str(dtype): lambda dtype=dtype: torch.ones(3, C, dtype=dtype) for dtype in DTYPES},
}


@pytest.mark.parametrize('make', INPUTS.values(), ids=INPUTS)
def test_any_input(make):
    assert_alike(*ffn_pair(), make())


def setting(**of_sizes):
    """A change of a layer: its parameters become ``of_sizes(out, in)``."""

    def change(layer):
        for name, make in of_sizes.items():
            setattr(layer, name, nn.Parameter(make(*layer.weight.shape)))

    return change


CHANGES = {
    'bf16': lambda layer: layer.bfloat16(),
    'fp64': lambda layer: layer.double(),
    'meta': lambda layer: layer.to('meta'),
    'bf16 bias': setting(bias=lambda out, _: normal(out).bfloat16()),
    'no bias': lambda layer: setattr(layer, 'bias', None),
    'too short a bias': setting(bias=lambda out, _: normal(out - 1)),
    'too narrow a weight': setting(weight=lambda out, channels: normal(out, channels - 3)),
    'weight with one axis': setting(weight=lambda _, channels: normal(channels)),
    'no rows': setting(weight=lambda _, channels: normal(0, channels), bias=lambda *_: normal(0)),
}


@pytest.mark.parametrize(('which', 'act_cfg'), [(0, GELU), (3, TANH)])
@pytest.mark.parametrize('change', CHANGES.values(), ids=CHANGES)
def test_any_weights(which, act_cfg, change):
    ours, plain = ffn_pair(change, which=which, act_cfg=act_cfg)
    assert_alike(ours, plain, normal(2, 70, C))
    assert_alike(ours, plain, normal(140, C).bfloat16())


def test_a_change_of_weights_holds_for_the_next_forward():
    ffn, x = FFN(C, 2).eval(), normal(1, 7, C)
    plain, other = PlainFFN(ffn), FFN(C, 2).state_dict()
    with torch.no_grad():
        for change in (ffn.layers[0].bias.zero_, lambda: ffn.load_state_dict(other, assign=True)):
            ffn(x, (7, 1))
            change()
            torch.testing.assert_close(ffn(x, (7, 1)), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('act_cfg', [GELU, TANH], ids=str)
@pytest.mark.parametrize('kept', [0, 1 << 40], ids=['computed again', 'kept'])
def test_derivatives_under_autocast_are_as_close_as_torchs_own(monkeypatch, act_cfg, kept):
    monkeypatch.setattr(gelu_ffn, 'LARGE_BYTES', kept)
    ours, plain = ffn_pair(act_cfg=act_cfg)
    exact = copy.deepcopy(plain).double()
    upstream, x = normal(1, 500, C), normal(1, 500, C)

    def derivatives(function, module, first, second):
        """The output, and its first and second derivatives, each under autocast or not.

        The first ones come twice, as those that come alone are computed in another way.
        """
        inputs = [x.to(module.layers[0].weight.dtype).requires_grad_(), *module.parameters()]
        out = function(inputs[0])
        with torch.autocast('cpu', torch.bfloat16, enabled=first):
            alone = torch.autograd.grad(out, inputs, upstream.to(out), retain_graph=True)
            grads = torch.autograd.grad(out, inputs, upstream.to(out), create_graph=True)
        loss = sum(grad.square().sum() for grad in grads)
        with torch.autocast('cpu', torch.bfloat16, enabled=second):
            return out, *alone, *grads, *torch.autograd.grad(loss, inputs[:-1])

    truth = derivatives(exact, exact, False, False)
    for autocasts in itertools.product((False, True), repeat=2):
        found, torchs = (derivatives(function, plain, *autocasts) for function in (ours, plain))
        for one, other, right in zip(found, torchs, truth):
            error, allowed = ((value - right).abs().max() for value in (one, other))
            # Beside bf16's, fp32's own errors of sums over 500 tokens.
            assert error <= 2 * allowed + 1e-4 * right.abs().max(), autocasts
    # First derivatives are fp32 under any autocast.
    for one, right in zip(derivatives(ours, plain, True, False)[:11], truth):
        assert (one - right).abs().max() <= 1e-5 * right.abs().max()
