"""Input that does not fit is refused with the bad value, by the ops and by their compiled code."""

import numpy as np
import pytest
import torch

from mmlaplace import ops
from mmlaplace.ops import _native
from mmlaplace.ops.newton_start_scale import newton_start_scale
from mmlaplace.ops.pola_streams import pola_streams
from mmlaplace.ops.signed_powers import signed_powers
from mmlaplace.ops.table import OPS

Q, ONE, EYE = torch.randn(1, 2, 6, 4), torch.ones(1), torch.eye(3)
TABLE = torch.ones(2, 1, 6)
# Arguments of each op.
NEAR, SMALL, GRAD = dict(q=Q, k=Q, bandwidth=1.0), dict(mat=EYE, ridge=0.1), Q @ Q.mT
TURNED = dict(rotary=TABLE, rotary_form='half')
MIXED = dict(
    TURNED,
    q=Q,
    k=Q,
    v=Q,
    landmarks=Q[:, :, :3],
    inverse=torch.ones(1, 2, 3, 3),
    bandwidth=4.0,
    kernel='laplacian',
)
EXACT = dict(TURNED, q=Q, k=Q, v=Q, bandwidth=4.0, kernel='laplacian')
FEATURES = dict(q=Q, k=Q, v=Q, eps=1e-6, features='relu', streams=1)
PUBLIC = {
    'laplacian_kernel': NEAR,
    'gaussian_kernel': NEAR,
    'newton_schulz_inverse': dict(SMALL, num_iters=3),
    'cholesky_inverse': SMALL,
    'inverse_residual': dict(SMALL, inverse=EYE),
    'nystrom_attention': dict(MIXED, scale=torch.ones(1, 2, 1, 1), whitening_eps=1e-5),
    'normalized_nystrom_attention': dict(MIXED, floor=1e-6),
    'kernel_attention': EXACT,
    'pooled_landmarks': dict(TURNED, k=Q, hw_shape=(2, 3), cells=(1, 2)),
    'linear_attention': dict(FEATURES, numerator=None),
}
ATTEND = dict(MIXED, scale=torch.ones(1, 2), whitening_eps=None)
NORMALIZED = dict(MIXED, floor=1e-6)
POOL = dict(TURNED, k=Q, height=2, width=3, rows=1, columns=2, ratio=None)
LINEAR = dict(FEATURES, top_q=Q, top_k=Q)
COMPILED = {
    'laplacian_kernel': NEAR,
    'gaussian_kernel': NEAR,
    '_laplacian_kernel_backward': dict(NEAR, grad=GRAD, out=GRAD),
    '_gaussian_kernel_backward': dict(NEAR, grad=GRAD, out=GRAD),
    'cholesky_inverse': SMALL,
    'newton_schulz_inverse': dict(SMALL, num_iters=3, start_scale=None),
    '_newton_start_scale': dict(mat=EYE, factor=1.8, halve=True, per_batch=False),
    'nystrom_attention': ATTEND,
    '_nystrom_attention_backward': dict(
        ATTEND,
        grad=Q,
        mean=torch.ones(1, 2, 0),
        covariance=torch.ones(1, 2, 0, 0),
        mixed=Q[:, :, :3],
    ),
    'normalized_nystrom_attention': NORMALIZED,
    '_normalized_nystrom_attention_backward': dict(
        NORMALIZED, grad=Q, key_sum=torch.ones(1, 2, 3), mixed=Q[:, :, :3]
    ),
    'kernel_attention': EXACT,
    '_kernel_attention_backward': dict(EXACT, grad=Q, means=Q, log_sums=torch.ones(1, 2, 6)),
    'pooled_landmarks': POOL,
    '_pooled_landmarks_backward': dict(POOL, grad=Q[:, :, :2]),
    'linear_attention': LINEAR,
    '_linear_attention_backward': dict(LINEAR, grad=Q, sums=torch.ones(1, 2, 4, 5)),
}
for _name, _row in OPS.items():
    if _name not in PUBLIC:  # newer ops
        PUBLIC[_name] = {**_row.tensors(), **_row.options}
        if _row.compiled is None:
            COMPILED[_name] = PUBLIC[_name]
NAN, INF, HUGE = float('nan'), float('inf'), 1 << 62
NOT_POSITIVE = [0.0, -0.0, -1.0, -1e-300, NAN, INF, -INF]
# Values that each op refuses which has such an argument.
BAD = dict(
    bandwidth=[*NOT_POSITIVE, 1e-39],
    ridge=[-0.5, -1e-300, NAN, INF],
    num_iters=[0, -3, -HUGE],
    factor=NOT_POSITIVE,
    whitening_eps=NOT_POSITIVE,
    floor=NOT_POSITIVE,
    eps=[-1.0, NAN, INF],
    streams=[0, 3],
    features=['exp'],
    kernel=['cauchy', 'Laplacian'],
    rotary_form=['whole', ''],
    rotary=[TABLE[:, 0], TABLE[..., :5]],
    height=[0, 3, HUGE],
    width=[0],
    rows=[0],
    columns=[0],
    hw_shape=[(2, 4), (-2, -3), (HUGE, HUGE)],
    cells=[None, (0, 2)],
)
compiled = pytest.mark.skipif(
    _native.WHY_MISSING is not None, reason='the compiled library is missing'
)


# What fits although it is changed.
PUBLIC_FITS = {
    'normalized_nystrom_attention': [('q', 'dtype'), ('k', 'dtype'), ('v', 'dtype')],
    'kernel_attention': [('q', 'dtype'), ('k', 'dtype'), ('v', 'dtype')],
    'inverse_residual': [('mat', 'device'), ('inverse', 'device')],
    'nystrom_attention': [('q', 'dtype'), ('k', 'dtype'), ('v', 'dtype'), ('scale', 'rank')],
}
FITS = {
    'pooled_landmarks': [('k', 'size')],
    '_pooled_landmarks_backward': [('k', 'size')],
    'linear_attention': [('v', 'size')],
    '_linear_attention_backward': [('v', 'size')],
}


def quotes(value):
    """How messages write a value, or the shape of a tensor."""
    if isinstance(value, torch.Tensor):
        return [str([*value.shape]), str((*value.shape,))]
    return [str(value), f'{value:g}' if isinstance(value, float) else str(value)]


def refused(arguments, fits):
    """Bad values, tensors of another rank, dtype, size or device, and how a message quotes them."""
    tensors = [key for key, value in arguments.items() if isinstance(value, torch.Tensor)]
    for key, value in arguments.items():
        for bad in BAD.get(key, []):
            yield key, bad.to(value.device) if key in tensors else bad, quotes(bad)
        if key in tensors and key != 'rotary':
            changes = dict(rank=value[0], size=value[..., :-1], dtype=value.int())
            for kind, bad in changes.items():
                if (key, kind) not in fits and value.shape[-1]:
                    yield key, bad, ['Int', 'int32'] if kind == 'dtype' else quotes(bad)
        if key in tensors[: len(tensors) - 1] and (key, 'device') not in fits:
            yield key, value.to('meta'), ['meta']


def check_refusals(name, function, arguments, fits):
    function(**arguments)
    for key, bad, quotes in refused(arguments, fits):
        with pytest.raises((RuntimeError, ValueError, TypeError)) as error:
            function(**{**arguments, key: bad})
        message = str(error.value)
        assert name in message and any(quote in message for quote in quotes), (key, bad, message)


@pytest.mark.parametrize('name', PUBLIC)
def test_the_bad_value_is_quoted(name):
    fits = FITS.get(name, []) + PUBLIC_FITS.get(name, [])
    check_refusals(name, getattr(ops, name), PUBLIC[name], fits)


@pytest.mark.parametrize(
    ('op', 'change', 'error', 'quoted'),
    [
        (ops.laplacian_kernel, dict(bandwidth='4'), TypeError, "got '4' of type str"),
        (
            ops.laplacian_kernel,
            dict(bandwidth=torch.tensor(4)),
            TypeError,
            'bandwidth .*torch.int64',
        ),
        (
            ops.laplacian_kernel,
            dict(bandwidth=torch.ones(3)),
            ValueError,
            r'\(1, 2, 1, 1\), got .*3,',
        ),
        (ops.laplacian_kernel, dict(backend='triton'), ValueError, "got 'triton'"),
        (ops.laplacian_kernel, dict(q=Q[:0].int(), k=Q[:0].int()), TypeError, 'int32'),
        (ops.gaussian_kernel, dict(bandwidth=1e-20), ValueError, 'got 1e-20'),
        (ops.cholesky_inverse, dict(mat=torch.ones(2, 0, 0)), ValueError, r'\(2, 0, 0\)'),
        (ops.inverse_residual, dict(ridge=ONE), TypeError, 'ridge must be a number, got a tensor'),
        (
            ops.newton_schulz_inverse,
            dict(start_scale=torch.ones(4)),
            ValueError,
            r'to \(\), .*\(4,\)',
        ),
        (ops.newton_schulz_inverse, dict(start_scale=0.1, start=EYE), ValueError, 'two starts'),
        (
            ops.newton_schulz_inverse,
            dict(start=EYE, backend='native'),
            RuntimeError,
            'use start_scale',
        ),
        (
            ops.nystrom_attention,
            dict(kernel='cauchy'),
            ValueError,
            "'laplacian', 'gaussian'.*'cauchy'",
        ),
        (
            ops.nystrom_attention,
            dict(rotary_form='whole'),
            ValueError,
            "'half', 'pairs'.*got 'whole'",
        ),
        (
            ops.nystrom_attention,
            dict(rotary=torch.ones(2, 3, 6)),
            ValueError,
            '4 channels have no 3 p',
        ),
        (ops.nystrom_attention, dict(v=[1.0]), TypeError, 'v .*list'),
        (ops.nystrom_attention, dict(scale=2.0), TypeError, 'scale .*got float'),
        (
            ops.nystrom_attention,
            dict(k=Q[:, :, :5], v=Q[:, :, :5]),
            ValueError,
            '6 queries and 5 keys',
        ),
        (ops.nystrom_attention, dict(bandwidth=ONE), TypeError, 'got a tensor'),
        (ops.pooled_landmarks, dict(ratio=2), ValueError, r'cells \(\(1, 2\)\) and ratio \(2\)'),
        (ops.pooled_landmarks, dict(cells=(HUGE, 4)), RuntimeError, f'got {HUGE} x 4'),
        (
            ops.linear_attention,
            dict(numerator=(Q, None)),
            ValueError,
            'both of its tensors, got one',
        ),
        (
            ops.linear_attention,
            dict(features='exp'),
            ValueError,
            "'none', 'relu', 'elu_plus_one'.*exp",
        ),
        (
            ops.linear_attention,
            dict(q=Q[..., :3], k=Q[..., :3], streams=2),
            ValueError,
            'even number',
        ),
    ],
)
def test_what_fits_is_said(op, change, error, quoted):
    with pytest.raises(error, match=quoted):
        op(**dict(PUBLIC[op.__name__], **change))


# Numbers, for which kernels take tensors as bandwidths alone.
NUMBERS = [
    (ops.cholesky_inverse, 'ridge'),
    (ops.newton_schulz_inverse, 'ridge'),
    (newton_start_scale, 'factor'),
    (ops.nystrom_attention, 'whitening_eps'),
    (ops.linear_attention, 'eps'),
]


@pytest.mark.parametrize('given', [torch.tensor(0.1, requires_grad=True), torch.ones(1), '0.1'])
@pytest.mark.parametrize('backend', ['auto', 'native', 'reference'])
@pytest.mark.parametrize(('op', 'name'), NUMBERS)
def test_a_tensor_is_no_number_as_its_gradient_would_be_lost(op, name, backend, given):
    arguments = PUBLIC.get(op.__name__, dict(mat=EYE, halve=True, per_batch=False))
    fix = r'a tensor of shape \(.*\), which would get no gradient; give float'
    said = "'0.1' of type str" if isinstance(given, str) else fix
    with pytest.raises(TypeError, match=f'{op.__name__}: {name} must be a number, got {said}'):
        op(**{**arguments, name: given}, backend=backend)


@pytest.mark.parametrize('backend', ['auto', 'native', 'reference'])
@pytest.mark.parametrize(('op', 'name'), NUMBERS)
def test_a_number_of_numpy_is_one(op, name, backend):
    arguments = PUBLIC.get(op.__name__, dict(mat=EYE, halve=True, per_batch=False))
    given, expected = (
        op(**{**arguments, name: number}, backend=backend) for number in (np.float32(0.5), 0.5)
    )
    assert torch.equal(given, expected)


@compiled
@pytest.mark.parametrize('device', ['cpu', 'meta'])
@pytest.mark.parametrize('name', COMPILED)
def test_compiled_ops_refuse_and_quote_each_bad_value(name, device):
    """Those of a CPU by C++, and those of meta, which graphs are traced with, by Python."""

    arguments = {k: v.to(device) if torch.is_tensor(v) else v for k, v in COMPILED[name].items()}
    fits = [*FITS.get(name, []), *((key, 'device') for key in arguments if device == 'meta')]
    op = torch.no_grad()(getattr(torch.ops.mmlaplace, name))
    check_refusals(name.strip('_').removesuffix('_backward'), op, arguments, fits)


@compiled
def test_compiled_powers_and_streams_quote_the_bad_shape():
    x, power = torch.zeros(1, 1, 2, 3), torch.ones(1, 1, 3)
    with pytest.raises(RuntimeError, match=r'power .*\[1, 1, 2\]'):
        signed_powers(x, power[..., :2], power)
    with pytest.raises(RuntimeError, match=r'sums .*\[1, 1, 6, 5\], got .* 3\]'):
        pola_streams(x, power, power, x, 1e-6)
