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
    ops.linear_attention: dict(q=Q, k=Q, v=Q),
}
KERNELS = [
    (dict(q=Q[0]), ValueError, r'q must .* axes .*\(2, 6, 4\)'),
    (dict(k=Q[:, :1]), ValueError, r'\(1, 1, 6, 4\)'),
    (dict(k=Q[..., :3]), ValueError, r'\(1, 2, 6, 3\)'),
    (dict(k=Q.double()), ValueError, 'float64'),
    (dict(k=Q.to('meta')), ValueError, 'cpu.*meta'),
    (dict(q=Q.int(), k=Q.int()), TypeError, 'int32'),
    (dict(bandwidth=0.0), ValueError, 'got 0.0'),
    (dict(bandwidth=float('inf')), ValueError, 'got inf'),
    (dict(bandwidth='4'), TypeError, "got '4' of type str"),
    (dict(bandwidth=torch.tensor(4)), TypeError, 'bandwidth .*got torch.int64'),
    (dict(bandwidth=torch.ones(3)), ValueError, r'\(1, 2, 1, 1\), got shape \(3,\)'),
    (dict(backend='triton'), ValueError, "got 'triton'"),
]
INVERSES = [
    (dict(mat=torch.ones(2, 3, 4)), ValueError, r'\(2, 3, 4\)'),
    (dict(mat=torch.ones(2, 0, 0)), ValueError, r'\(2, 0, 0\)'),
    (dict(ridge=-0.5), ValueError, 'got -0.5'),
]
NEWTON = [
    (dict(num_iters=0), ValueError, 'num_iters.*got 0'),
    (dict(start_scale=torch.ones(4)), ValueError, r'broadcast to \(\), .* got shape \(4,\)'),
    (dict(start_scale=0.1, start=EYE), ValueError, 'two starts'),
    (dict(start=EYE, backend='native'), RuntimeError, 'takes no start; use start_scale'),
]
RESIDUAL = [
    *INVERSES,
    (dict(inverse=EYE[:2]), ValueError, r'inverse .*\(3, 3\), got \(2, 3\)'),
]
ROTARY = [
    (dict(rotary_form='whole'), ValueError, "'half', 'pairs'.*got 'whole'"),
    (dict(rotary=TABLE[:, 0]), ValueError, r'\(2, pairs, 6\) on cpu, got \(2, 6\)'),
    (dict(rotary=torch.ones(2, 3, 6)), ValueError, '4 channels have no 3 pairs'),
]
ATTENTION = [
    (dict(kernel='cauchy'), ValueError, "'laplacian', 'gaussian'.*got 'cauchy'"),
    (dict(v=[1.0]), TypeError, 'v .*list'),
    (dict(v=Q[:, :, :5]), ValueError, r'v .*got \(1, 2, 5, 4\)'),
    (dict(landmarks=ONE), ValueError, r"landmarks .*\(1, 2, 'm', 4\).*got \(1,\)"),
    (dict(inverse=Q), ValueError, r'inverse .*\(1, 2, 3, 3\).*got \(1, 2, 6, 4\)'),
    (dict(scale=2.0), TypeError, 'scale .*got float'),
    (dict(scale=torch.ones(3, 1, 1)), ValueError, r'\(1, 2, 1, 1\).*got \(3, 1, 1\)'),
    (dict(scale=ONE.to('meta')), ValueError, r'on cpu, got \(1,\) on meta'),
    (dict(k=Q[:, :, :5], v=Q[:, :, :5], rotary=TABLE), ValueError, '6 queries and 5 keys'),
    (dict(bandwidth=ONE), TypeError, 'got a tensor'),
    (dict(whitening_eps=0.0), ValueError, 'whitening_eps .*got 0.0'),
]
POOLING = [
    (dict(k=Q[0]), ValueError, r'\(2, 3\), got \(2, 6, 4\)'),
    (dict(hw_shape=(2, 4)), ValueError, r'8, d\) for hw_shape \(2, 4\), got \(1, 2, 6, 4\)'),
    (dict(hw_shape=(-2, -3)), ValueError, r'hw_shape .*got \(-2, -3\)'),
    (dict(cells=None), ValueError, r'cells \(None\) and ratio \(None\)'),
    (dict(ratio=2), ValueError, r'cells \(\(1, 2\)\) and ratio \(2\)'),
    (dict(cells=None, ratio=0), ValueError, r'ratio \(0\)'),
]
LINEAR = [
    (dict(q=Q.int()), TypeError, 'q .*got torch.int32'),
    (dict(v=[1.0]), TypeError, 'v .*list'),
    (dict(k=Q[..., :3]), ValueError, r'k must be \(1, 2, 6, 4\).*got \(1, 2, 6, 3\)'),
    (dict(v=Q[:, :, :5]), ValueError, r'v must be \(1, 2, 6, 4\).*got \(1, 2, 5, 4\)'),
    (dict(numerator=(Q, Q[:, :1])), ValueError, r'numerator\[1\] .*got \(1, 1, 6, 4\)'),
    (dict(numerator=(Q, None)), ValueError, 'both of its tensors, got one'),
    (dict(eps=-1.0), ValueError, 'eps .*got -1.0'),
    (dict(features='exp'), ValueError, "'none', 'relu', 'elu_plus_one'.*got 'exp'"),
    (dict(streams=3), ValueError, 'streams .*got 3'),
    (dict(q=Q[..., :3], k=Q[..., :3], streams=2), ValueError, 'even number of features, got 3'),
]
CASES = [
    *((op, *case) for op in (ops.laplacian_kernel, ops.gaussian_kernel) for case in KERNELS),
    *((op, *case) for op in (ops.newton_schulz_inverse, ops.cholesky_inverse) for case in INVERSES),
    *((ops.newton_schulz_inverse, *case) for case in NEWTON),
    *((ops.inverse_residual, *case) for case in RESIDUAL),
    *((op, *case) for op in (ops.nystrom_attention, ops.pooled_landmarks) for case in ROTARY),
    *((ops.nystrom_attention, *case) for case in ATTENTION),
    *((ops.pooled_landmarks, *case) for case in POOLING),
    *((ops.linear_attention, *case) for case in LINEAR),
]


@pytest.mark.parametrize(('op', 'change', 'error', 'quoted'), CASES)
def test_the_bad_value_is_quoted(op, change, error, quoted):
    with pytest.raises(error, match=quoted):
        op(**dict(GOOD[op], **change))


OPS = torch.ops.mmlaplace
ATTEND = dict(
    q=Q, k=Q, v=Q, landmarks=Q[:, :, :3], inverse=torch.ones(1, 2, 3, 3), scale=torch.ones(1, 2),
    rotary=TABLE, kernel='laplacian', bandwidth=4.0, whitening_eps=None, rotary_form='half',
)  # fmt: skip
# Arguments of each compiled op.
SMALL = dict(mat=EYE, ridge=0.1)
NEWTON_OP = dict(mat=EYE.expand(4, 3, 3), num_iters=3, ridge=0.1, start_scale=torch.ones(4))
NEAR, GRAD = dict(q=Q, k=Q, bandwidth=1.0), Q @ Q.mT
ATTEND_LINEAR = dict(q=Q, k=Q, v=Q, top_q=Q, top_k=Q, eps=1e-6, features='relu', streams=1)
POOL = dict(k=Q, rotary=TABLE, rotary_form='half', height=2, width=3, rows=1, columns=2, ratio=None)
CALLS = {
    'laplacian_kernel': NEAR,
    'gaussian_kernel': NEAR,
    '_laplacian_kernel_backward': dict(NEAR, grad=GRAD, out=GRAD),
    '_gaussian_kernel_backward': dict(NEAR, grad=GRAD, out=GRAD),
    'cholesky_inverse': SMALL,
    'newton_schulz_inverse': NEWTON_OP,
    '_newton_start_scale': dict(mat=EYE, factor=1.8, halve=True, per_batch=False),
    'nystrom_attention': ATTEND,
    '_nystrom_attention_backward': dict(
        ATTEND, grad=Q, mean=torch.ones(1, 2, 0), covariance=torch.ones(1, 2, 0, 0),
        mixed=Q[:, :, :3],
    ),
    'pooled_landmarks': POOL,
    '_pooled_landmarks_backward': dict(POOL, grad=Q[:, :, :2]),
    'linear_attention': ATTEND_LINEAR,
    '_linear_attention_backward': dict(ATTEND_LINEAR, grad=Q, sums=torch.ones(1, 2, 4, 5)),
}  # fmt: skip
NAN, INF, HUGE = float('nan'), float('inf'), 1 << 62
NOT_POSITIVE = [0.0, -0.0, -1.0, -1e-300, NAN, INF, -INF]
# Values that each op refuses which has such an argument.
BAD = dict(
    bandwidth=[*NOT_POSITIVE, 1e-39], ridge=[-0.5, -1e-300, NAN, INF], num_iters=[0, -3, -HUGE],
    factor=NOT_POSITIVE, whitening_eps=NOT_POSITIVE, eps=[-1.0, NAN, INF], streams=[0, 3],
    features=['exp'], kernel=['cauchy', 'Laplacian'], rotary_form=['whole', ''],
    rotary=[TABLE[:, 0], TABLE[..., :5], torch.ones(2, 3, 6)], height=[0, 3, HUGE], width=[0],
    rows=[0, None], columns=[0, None], ratio=[2],
)  # fmt: skip
HUGE_MAT = dict(mat=torch.eye(513))
TOO_LARGE = {  # for a CPU, but maybe not for another device that meta stands for
    'cholesky_inverse': HUGE_MAT,
    'newton_schulz_inverse': dict(HUGE_MAT, start_scale=None),
    '_newton_start_scale': HUGE_MAT,
    'pooled_landmarks': dict(rows=HUGE, columns=4),
    '_pooled_landmarks_backward': dict(rows=HUGE, columns=4),
}
NO_ROWS, OF_GAUSSIAN = dict(mat=torch.ones(2, 0, 0)), dict(kernel='gaussian', bandwidth=1e-20)
OF_POOLS = [
    dict(height=-2, width=-3), dict(height=HUGE, width=HUGE), dict(rows=-1, columns=-2),
    *(dict(rows=None, columns=None, ratio=ratio) for ratio in (None, 0, -1)),
]  # fmt: skip
# What it refuses beside one bad value, and beside one tensor of another rank, size or dtype.
OTHERS = {
    'laplacian_kernel': [dict(q=Q.int(), k=Q.int()), dict(q=Q[:0].int(), k=Q[:0].int())],
    'gaussian_kernel': [dict(bandwidth=1e-20)],
    'cholesky_inverse': [NO_ROWS],
    'newton_schulz_inverse': [NO_ROWS],
    'nystrom_attention': [OF_GAUSSIAN, dict(k=Q[:, :, :5], v=Q[:, :, :5])],
    '_nystrom_attention_backward': [OF_GAUSSIAN, dict(whitening_eps=1.0)],
    'pooled_landmarks': OF_POOLS,
    '_pooled_landmarks_backward': OF_POOLS,
    'linear_attention': [
        dict(top_q=None), dict(top_k=None), dict(q=Q.int(), k=Q.int(), v=Q.int()),
        dict(q=Q[..., :3], k=Q[..., :3], top_q=None, top_k=None, streams=2),
    ],
}  # fmt: skip
compiled = pytest.mark.skipif(
    _native.WHY_MISSING is not None, reason='the compiled library is missing'
)


def call(name, change=None, device='cpu'):
    """Call an op by the names of its arguments, of which some are changed, on a device."""
    arguments = dict(CALLS[name], **(change or {}))
    moved = {
        key: value.to(device) if isinstance(value, torch.Tensor) else value
        for key, value in arguments.items()
    }
    with torch.no_grad():
        return getattr(OPS, name)(**moved)


def refused(name):
    """Changes of the arguments of an op that it refuses."""
    for key, value in CALLS[name].items():
        bad = BAD.get(key, [])
        if isinstance(value, torch.Tensor) and key != 'rotary':
            bad = [value[0], value.int()]
            if (name.strip('_'), key) != ('pooled_landmarks', 'k') and value.shape[-1]:
                bad.append(value[..., :-1])
        yield from ({key: one} for one in bad)
    yield from OTHERS.get(name, [])


def quotes(message, value):
    """Whether a message has the value, or the shape or dtype of a tensor."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix('torch.').removesuffix('32').capitalize()
        return str([*value.shape]) in message or dtype in message
    return (f'{value:g}' if isinstance(value, float) else str(value)) in message


@compiled
@pytest.mark.parametrize('device', ['cpu', 'meta'])
@pytest.mark.parametrize('name', CALLS)
def test_compiled_ops_refuse_and_quote_each_bad_value(name, device):
    """Those of a CPU by C++, and those of meta, which graphs are traced with, by Python."""
    call(name, device=device)
    too_large = [TOO_LARGE[name]] if device == 'cpu' and name in TOO_LARGE else []
    for change in [*refused(name), *too_large]:
        with pytest.raises((RuntimeError, ValueError, TypeError)) as error:
            call(name, change, device)
        message = str(error.value)
        assert name.strip('_').removesuffix('_backward') in message, change
        assert device == 'meta' or any(quotes(message, one) for one in change.values()), message


X, POWER = torch.zeros(1, 1, 2, 3), torch.ones(1, 1, 3)


@compiled
def test_compiled_powers_and_streams_quote_the_bad_shape():
    with pytest.raises(RuntimeError, match=r'power .*\[1, 1, 2\]'):
        signed_powers(X, POWER[..., :2], POWER)
    with pytest.raises(RuntimeError, match=r'sums .*\[1, 1, 6, 5\], got .* 3\]'):
        pola_streams(X, POWER, POWER, X, 1e-6)


# Each call, whose tensors but one are on a CPU. Its outputs would be memory without values.
@pytest.mark.parametrize('name', ['laplacian_kernel', 'nystrom_attention'])
def test_tensors_on_several_devices_are_refused(name):
    for key, value in CALLS[name].items():
        if isinstance(value, torch.Tensor):
            moved = dict(CALLS[name], **{key: value.to('meta')})
            with pytest.raises(RuntimeError, match=rf"{name}: .*\['cpu', 'meta'\]"):
                getattr(OPS, name)(**moved)
