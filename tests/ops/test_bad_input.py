"""Input that does not fit is refused with the bad value, by the ops and by their compiled code."""

import pytest
import torch

from mmlaplace import ops
from mmlaplace.ops import _native
from mmlaplace.ops.pola_streams import pola_streams
from mmlaplace.ops.signed_powers import signed_powers

Q, ONE, EYE = torch.randn(1, 2, 6, 4), torch.ones(1), torch.eye(3)
TABLE = torch.ones(2, 1, 6)
# Calls of which each case below changes arguments.
GOOD = {
    ops.laplacian_kernel: dict(q=Q, k=Q, bandwidth=1.0),
    ops.gaussian_kernel: dict(q=Q, k=Q, bandwidth=1.0),
    ops.newton_schulz_inverse: dict(mat=EYE, ridge=0.1),
    ops.cholesky_inverse: dict(mat=EYE, ridge=0.1),
    ops.inverse_residual: dict(mat=EYE, inverse=EYE, ridge=0.1),
    ops.nystrom_attention: dict(
        q=Q, k=Q, v=Q, landmarks=Q[:, :, :3], inverse=torch.ones(1, 2, 3, 3), bandwidth=4.0
    ),
    ops.pooled_landmarks: dict(k=Q, hw_shape=(2, 3), cells=(1, 2)),
}
KERNELS = [
    (dict(q=Q[0]), ValueError, r'q must .* axes .*\(2, 6, 4\)'),
    (dict(q=Q[None]), ValueError, r'q .*\(1, 1, 2, 6, 4\)'),
    (dict(k=Q[:, :1]), ValueError, r'\(1, 1, 6, 4\)'),
    (dict(k=Q[..., :3]), ValueError, r'\(1, 2, 6, 3\)'),
    (dict(k=Q.double()), ValueError, 'float64'),
    (dict(k=Q.to('meta')), ValueError, 'cpu.*meta'),
    (dict(q=Q.int(), k=Q.int()), TypeError, 'int32'),
    (dict(bandwidth=0.0), ValueError, 'got 0.0'),
    (dict(bandwidth=-4), ValueError, 'got -4'),
    (dict(bandwidth=float('inf')), ValueError, 'got inf'),
    (dict(bandwidth='4'), TypeError, "got '4' of type str"),
    (dict(bandwidth=True), TypeError, 'got True of type bool'),
    (dict(bandwidth=torch.tensor(4)), TypeError, 'bandwidth .*got torch.int64'),
    (dict(bandwidth=torch.ones(3)), ValueError, r'\(1, 2, 1, 1\), got shape \(3,\)'),
    (dict(bandwidth=torch.ones(1, 1, 1, 1, 1)), ValueError, r'got shape \(1, 1, 1, 1, 1\)'),
    (dict(backend='triton'), ValueError, "got 'triton'"),
]
INVERSES = [
    (dict(mat=torch.ones(2, 3, 4)), ValueError, r'\(2, 3, 4\)'),
    (dict(mat=ONE), ValueError, r'\(1,\)'),
    (dict(mat=torch.ones(2, 0, 0)), ValueError, r'\(2, 0, 0\)'),
    (dict(ridge=-0.5), ValueError, 'got -0.5'),
    (dict(ridge=float('inf')), ValueError, 'got inf'),
]
NEWTON = [
    (dict(num_iters=0), ValueError, 'num_iters.*got 0'),
    (dict(start_scale=torch.ones(4)), ValueError, r'broadcast to \(\), .* got shape \(4,\)'),
    (dict(start_scale=0.1, start=EYE), ValueError, 'two starts'),
    (dict(start=EYE, backend='native'), RuntimeError, 'takes no start; use start_scale'),
]
RESIDUAL = [
    *INVERSES,
    (dict(ridge=float('nan')), ValueError, 'got nan'),
    (dict(inverse=EYE[:2]), ValueError, r'inverse .*\(3, 3\), got \(2, 3\)'),
    (dict(inverse=EYE.int()), TypeError, 'inverse .*got torch.int32'),
]
ROTARY = [
    (dict(rotary_form='whole'), ValueError, "'half', 'pairs'.*got 'whole'"),
    (dict(rotary=TABLE[:, 0]), ValueError, r'\(2, pairs, 6\) on cpu, got \(2, 6\)'),
    (dict(rotary=TABLE[..., :5]), ValueError, r'got \(2, 1, 5\)'),
    (dict(rotary=TABLE.to('meta')), ValueError, 'on cpu, got.* on meta'),
    (dict(rotary=torch.ones(2, 3, 6)), ValueError, '4 channels have no 3 pairs'),
]
ATTENTION = [
    (dict(kernel='cauchy'), ValueError, "'laplacian', 'gaussian'.*got 'cauchy'"),
    (dict(v=[1.0]), TypeError, 'v .*list'),
    (dict(v=Q[:, :, :5]), ValueError, r'v .*got \(1, 2, 5, 4\)'),
    (dict(v=Q.to('meta')), ValueError, 'v .* on cpu, got .* on meta'),
    (dict(landmarks=ONE), ValueError, r"landmarks .*\(1, 2, 'm', 4\).*got \(1,\)"),
    (dict(inverse=Q), ValueError, r'inverse .*\(1, 2, 3, 3\).*got \(1, 2, 6, 4\)'),
    (dict(scale=2.0), TypeError, 'scale .*got float'),
    (dict(scale=torch.ones(3, 1, 1)), ValueError, r'\(1, 2, 1, 1\).*got \(3, 1, 1\)'),
    (dict(scale=torch.ones(1, 1, 1, 1, 1)), ValueError, r'got \(1, 1, 1, 1, 1\)'),
    (dict(scale=ONE.to('meta')), ValueError, r'on cpu, got \(1,\) on meta'),
    (dict(k=Q[:, :, :5], v=Q[:, :, :5], rotary=TABLE), ValueError, '6 queries and 5 keys'),
    (dict(bandwidth=ONE), TypeError, 'got a tensor'),
    (dict(whitening_eps=0.0), ValueError, 'whitening_eps .*got 0.0'),
]
POOLING = [
    (dict(k=Q.int()), TypeError, 'k .*got torch.int32'),
    (dict(k=Q[0]), ValueError, r'\(2, 3\), got \(2, 6, 4\)'),
    (dict(hw_shape=(2, 4)), ValueError, r'8, d\) for hw_shape \(2, 4\), got \(1, 2, 6, 4\)'),
    (dict(hw_shape=(-2, -3)), ValueError, r'hw_shape .*got \(-2, -3\)'),
    (dict(cells=None), ValueError, r'cells \(None\) and ratio \(None\)'),
    (dict(ratio=2), ValueError, r'cells \(\(1, 2\)\) and ratio \(2\)'),
    (dict(cells=(0, 2)), ValueError, r'cells \(\(0, 2\)\)'),
    (dict(cells=None, ratio=0), ValueError, r'ratio \(0\)'),
]
CASES = [
    *((op, *case) for op in (ops.laplacian_kernel, ops.gaussian_kernel) for case in KERNELS),
    *((op, *case) for op in (ops.newton_schulz_inverse, ops.cholesky_inverse) for case in INVERSES),
    *((ops.newton_schulz_inverse, *case) for case in NEWTON),
    *((ops.inverse_residual, *case) for case in RESIDUAL),
    *((op, *case) for op in (ops.nystrom_attention, ops.pooled_landmarks) for case in ROTARY),
    *((ops.nystrom_attention, *case) for case in ATTENTION),
    *((ops.pooled_landmarks, *case) for case in POOLING),
]


@pytest.mark.parametrize(('op', 'change', 'error', 'quoted'), CASES)
def test_the_bad_value_is_quoted(op, change, error, quoted):
    with pytest.raises(error, match=quoted):
        op(**dict(GOOD[op], **change))


OPS = torch.ops.mmlaplace
ATTEND = dict(
    q=Q, k=Q, v=Q, landmarks=Q[:, :, :3], inverse=torch.ones(1, 2, 3, 3), scale=torch.ones(1, 2),
    rotary=None, kernel='laplacian', bandwidth=4.0, whitening=-1.0, adjacent=False,
)  # fmt: skip


def attention_backward(**changed):
    """The compiled gradients of attention without whitening, of which a few inputs are changed."""
    mean, covariance, mixed = torch.ones(1, 2, 0), torch.ones(1, 2, 0, 0), Q[:, :, :3]
    inputs = dict(ATTEND, grad=Q, mean=mean, covariance=covariance, mixed=mixed)
    with torch.no_grad():
        return OPS._nystrom_attention_backward(**dict(inputs, **changed))


X, POWER = torch.zeros(1, 1, 2, 3), torch.ones(1, 1, 3)
COMPILED = [
    (lambda: OPS.laplacian_kernel(Q[0, 0], Q, 1.0), r'\[6, 4\]'),
    (lambda: OPS.laplacian_kernel(Q, Q.double(), 1.0), 'Double'),
    (lambda: OPS.newton_schulz_inverse(torch.ones(2, 3), 3, 0.1), r'\[2, 3\]'),
    (lambda: OPS.newton_schulz_inverse(EYE.expand(4, 3, 3), 3, 0.0, torch.ones(3)),
     r'start_scale .*\[4\].*got \[3\]'),
    (lambda: OPS.nystrom_attention(**dict(ATTEND, v=Q[..., :3])), r'v \[1, 2, 6, 3\].*q \[1, 2, 6'),
    (lambda: OPS.newton_schulz_inverse(EYE.int(), 3, 0.1), 'mat must be fp16.* got Int'),
    (lambda: OPS.cholesky_inverse(EYE.int(), 0.1), 'mat must be fp16.* got Int'),
    (lambda: OPS._newton_start_scale(EYE.int(), 1.8, True, False), 'mat must be fp16.* got Int'),
    (lambda: OPS._newton_schulz_inverse_backward(EYE, EYE[:0]), r'must be .*got shape \[0, 3\]'),
    (lambda: OPS._newton_schulz_inverse_backward(EYE.double(), EYE), 'Float .*got Double'),
    (lambda: OPS.nystrom_attention(**dict(ATTEND, scale=ONE)), r'scale .*got \[1\]'),
    (lambda: OPS.nystrom_attention(**dict(ATTEND, inverse=ATTEND['inverse'].int())),
     'inverse must be fp16.* got Int'),
    (lambda: attention_backward(mean=torch.ones(1, 2, 3)), r'mean \[1, 2, 3\].* not those of'),
    (lambda: attention_backward(mixed=Q[:, :, :3].double()), 'mixed must be Float.*got Double'),
    (lambda: OPS.nystrom_attention(**dict(ATTEND, rotary=torch.ones(2, 3, 6))), '2 . pairs <= 4'),
    (lambda: OPS.pooled_landmarks(Q, None, False, 2, 4, 1, 1, 0), r'2 \* 4, got \[1, 2, 6, 4\]'),
    (lambda: OPS.pooled_landmarks(Q, None, False, 2, 3, 0, 1, 0), 'got 0 x 1 and ratio 0'),
    (lambda: OPS._pooled_landmarks_backward(Q, ONE, None, False, 2, 3, 1, 1, 0), r'got \[1\]'),
    (lambda: OPS._pooled_landmarks_backward(Q.int()[:, :, :1], Q, None, False, 2, 3, 1, 1, 0),
     'gradient must be fp16.* got Int'),
    (lambda: signed_powers(X, POWER[..., :2], POWER), r'power .*\[1, 1, 2\]'),
    (lambda: pola_streams(X, POWER, POWER, X, 1e-6), r'sums .*\[1, 1, 6, 5\], got .* 3\]'),
]  # fmt: skip


@pytest.mark.skipif(_native.WHY_MISSING is not None, reason='the compiled library is missing')
@pytest.mark.parametrize(('call', 'quoted'), COMPILED)
def test_compiled_code_quotes_the_bad_value(call, quoted):
    with pytest.raises(RuntimeError, match=quoted):
        call()


# Each call, whose tensors but one are on a CPU. Its outputs would be memory without values.
@pytest.mark.parametrize('name', ['laplacian_kernel', 'nystrom_attention'])
def test_tensors_on_several_devices_are_refused(name):
    arguments = {
        'laplacian_kernel': dict(q=Q, k=Q, bandwidth=1.0),
        'nystrom_attention': ATTEND,
    }[name]  # fmt: skip
    for key, value in arguments.items():
        if isinstance(value, torch.Tensor):
            moved = dict(arguments, **{key: value.to('meta')})
            with pytest.raises(RuntimeError, match=rf"{name}: .*\['cpu', 'meta'\]"):
                getattr(OPS, name)(**moved)
