"""The operators of mmlaplace for ONNX Runtime and OpenVINO, as an ONNX file has them."""

from pathlib import Path
from typing import Any, Callable, Dict, Sequence

import torch

from ..models.layers.pola_attention import OP as POLA
from ..ops.landmark_attention import WHOLE
from ..ops.linear_attention import OP as LINEAR
from . import onnx_forms

DOMAIN = 'mmlaplace'
VERSION = 1
# The ops that have an operator. All others are written as standard operators.
OPS = (
    WHOLE,
    'nystrom_attention',
    'normalized_nystrom_attention',
    'cholesky_inverse',
    'newton_schulz_inverse',
    LINEAR,
    POLA,
)
# Of ONNX Runtime. In a folder of its own, as it is no module of Python.
LIBRARY = Path(__file__).resolve().parent.parent / 'lib' / 'onnxruntime_ops.so'
BUILD = 'python tools/deployment/build_onnxruntime_ops.py'


def _operator(
    name: str,
    inputs: Sequence[str],
    attributes: Dict[str, str],
    optional: Sequence[str] = (),
    integers: Sequence[str] = (),
) -> Callable:
    """An operator of fp32 tensors but for some ``integers``; ``attributes`` has their types."""
    import onnxscript
    from onnx.defs import OpSchema

    def parameter(name: str) -> 'OpSchema.FormalParameter':
        option = OpSchema.FormalParameterOption
        return OpSchema.FormalParameter(
            name,
            'tensor(int64)' if name in integers else 'tensor(float)',
            param_option=option.Optional if name in optional else option.Single,
        )

    schema = OpSchema(
        name,
        DOMAIN,
        VERSION,
        inputs=[parameter(each) for each in (*inputs, *optional)],
        outputs=[parameter('out')],
        attributes=[
            OpSchema.Attribute(key, getattr(OpSchema.AttrType, kind), required=True)
            for key, kind in attributes.items()
        ],
    )
    return onnxscript.values.Op(onnxscript.values.Opset(DOMAIN, VERSION), name, schema)


def translations() -> Dict[Callable, Callable]:
    """For torch.onnx: how the compiled ops of :data:`OPS` are written.

    ``NystromAttention`` and ``NormalizedNystromAttention`` take and give tokens as ``(B, tokens,
    heads, d)``, as linears have them. ONNX Runtime then drops the transpositions before and after.
    """
    from onnxscript import ir
    from onnxscript import opset18 as op

    attention = _operator(
        'NystromAttention',
        ('q', 'k', 'v', 'landmarks', 'inverse', 'scale'),
        dict(kernel='STRING', bandwidth='FLOAT', whitening='FLOAT', adjacent='INT'),
        optional=('rotary',),
    )
    normalized = _operator(
        'NormalizedNystromAttention',
        ('q', 'k', 'v', 'landmarks', 'inverse'),
        dict(kernel='STRING', bandwidth='FLOAT', floor='FLOAT', adjacent='INT'),
        optional=('rotary',),
    )
    inverse = _operator('CholeskyInverse', ('mat',), dict(ridge='FLOAT'))
    iteration = _operator(
        'NewtonSchulzInverse',
        ('mat',),
        dict(ridge='FLOAT', num_iters='INT'),
        optional=('start_scale',),
    )
    whole = _operator(
        'LandmarkAttention',
        ('q', 'k', 'v', 'map'),
        dict(
            kernel='STRING',
            bandwidth='FLOAT',
            whitening='FLOAT',
            floor='FLOAT',
            ridge='FLOAT',
            adjacent='INT',
            ratio='INT',
            of_queries='INT',
        ),
        optional=('gamma', 'rotary'),
        integers=('map',),
    )

    linear = _operator(
        'LinearAttention',
        ('q', 'k', 'v'),
        dict(features='STRING', eps='FLOAT', streams='INT'),
        optional=('top_q', 'top_k', 'power', 'shift'),
    )

    def nystrom_attention(
        q, k, v, landmarks, matrix, scale, rotary, kernel, bandwidth, whitening_eps, rotary_form
    ):
        q, k, v = (op.Transpose(tokens, perm=[0, 2, 1, 3]) for tokens in (q, k, v))
        out = attention(
            q,
            k,
            v,
            landmarks,
            matrix,
            scale,
            rotary,
            kernel=kernel,
            bandwidth=bandwidth,
            whitening=-1.0 if whitening_eps is None else whitening_eps,
            adjacent=int(rotary_form == 'pairs'),
        )
        # Three more are for a backward; nothing in a file reads them.
        unused = (ir.Value(name=None) for _ in range(3))
        return (op.Transpose(out, perm=[0, 2, 1, 3]), *unused)

    def normalized_nystrom_attention(
        q, k, v, landmarks, matrix, rotary, kernel, bandwidth, floor, rotary_form
    ):
        q, k, v = (op.Transpose(tokens, perm=[0, 2, 1, 3]) for tokens in (q, k, v))
        out = normalized(
            q,
            k,
            v,
            landmarks,
            matrix,
            rotary,
            kernel=kernel,
            bandwidth=bandwidth,
            floor=floor,
            adjacent=int(rotary_form == 'pairs'),
        )
        unused = (ir.Value(name=None) for _ in range(2))
        return (op.Transpose(out, perm=[0, 2, 1, 3]), *unused)

    def cholesky_inverse(mat, ridge):
        return inverse(mat, ridge=ridge)

    def newton_schulz_inverse(mat, num_iters, ridge, start_scale=None):
        return iteration(mat, start_scale, ridge=ridge, num_iters=num_iters)

    def whole_landmark_attention(
        q,
        k,
        v,
        gamma,
        rotary,
        rotary_form,
        height,
        width,
        rows,
        columns,
        ratio,
        kernel,
        bandwidth,
        ridge,
        whitening_eps,
        floor,
        of_queries,
    ):
        q, k, v = (op.Transpose(tokens, perm=[0, 2, 1, 3]) for tokens in (q, k, v))
        sides = (height, width, 0, 0) if ratio else (height, width, rows, columns)
        out = whole(
            q,
            k,
            v,
            op.Concat(*map(_as_vector, sides), axis=0),
            gamma,
            rotary,
            kernel=kernel,
            bandwidth=bandwidth,
            whitening=-1.0 if whitening_eps is None else whitening_eps,
            floor=-1.0 if floor is None else floor,
            ridge=ridge,
            adjacent=int(rotary_form == 'pairs'),
            ratio=ratio or 0,
            of_queries=int(of_queries),
        )
        return op.Transpose(out, perm=[0, 2, 1, 3])

    def linear_attention(q, k, v, top_q, top_k, eps, features, streams):
        out = linear(
            *(by_token(x) for x in (q, k, v, top_q, top_k)),
            None,
            None,
            features=features,
            eps=eps,
            streams=streams,
        )
        return op.Transpose(out, perm=[0, 2, 1, 3]), ir.Value(name=None)  # for a backward

    def pola_attention(q, k, v, power, shift, eps):
        q, k, v = (by_token(x) for x in (q, k, v))
        options = dict(features='powers', eps=eps, streams=2)
        out = linear(q, k, v, None, None, power, shift, **options)
        return op.Transpose(out, perm=[0, 2, 1, 3])

    def by_token(x):
        return None if x is None else op.Transpose(x, perm=[0, 2, 1, 3])

    ours = torch.ops.mmlaplace
    return {
        ours.nystrom_attention.default: nystrom_attention,
        ours.normalized_nystrom_attention.default: normalized_nystrom_attention,
        ours.cholesky_inverse.default: cholesky_inverse,
        ours.newton_schulz_inverse.default: newton_schulz_inverse,
        getattr(ours, WHOLE).default: whole_landmark_attention,
        ours.linear_attention.default: linear_attention,
        getattr(ours, POLA).default: pola_attention,
    }


def _as_vector(side: Any) -> Any:
    """A number of the graph, or one that is known, as integers ``(1,)``."""
    op = onnx_forms.operators()
    if isinstance(side, int):
        return op.Constant(value_ints=[side])
    return op.Reshape(op.Cast(side, to=7), op.Constant(value_ints=[1]))  # 7 is INT64


def why_missing(error: Exception) -> str:
    """Advice if ONNX Runtime lacks an operator of mmlaplace; empty for other errors."""
    if f'{DOMAIN}:' not in str(error):
        return ''
    return (
        f"this file calls operators of mmlaplace, and their library is missing: '{BUILD}' in a "
        f'clone of mmlaplace makes it ({LIBRARY}); or export with --backend reference'
    )
