"""The operators of mmlaplace for ONNX Runtime: how they are written, and where their library is."""

from pathlib import Path
from typing import Callable, Dict, Sequence

import torch

DOMAIN = 'mmlaplace'
VERSION = 1
# The ops that have an operator. All others are written as standard operators.
OPS = ('nystrom_attention', 'normalized_nystrom_attention', 'cholesky_inverse')
# In a folder of its own, as it is no module of Python.
LIBRARY = Path(__file__).resolve().parent.parent / 'lib' / 'onnxruntime_ops.so'
BUILD = 'python tools/deployment/build_onnxruntime_ops.py'


def _operator(
    name: str, inputs: Sequence[str], attributes: Dict[str, str], optional: Sequence[str] = ()
) -> Callable:
    """An operator of fp32 tensors; ``attributes`` has their types."""
    import onnxscript
    from onnx.defs import OpSchema

    def parameter(name: str) -> 'OpSchema.FormalParameter':
        option = OpSchema.FormalParameterOption
        return OpSchema.FormalParameter(
            name,
            'tensor(float)',
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

    ours = torch.ops.mmlaplace
    return {
        ours.nystrom_attention.default: nystrom_attention,
        ours.normalized_nystrom_attention.default: normalized_nystrom_attention,
        ours.cholesky_inverse.default: cholesky_inverse,
    }


def why_missing(error: Exception) -> str:
    """Advice if ONNX Runtime lacks an operator of mmlaplace; empty for other errors."""
    if f'{DOMAIN}:' not in str(error):
        return ''
    return (
        f"this file calls operators of mmlaplace, and their library is missing: '{BUILD}' in a "
        f'clone of mmlaplace makes it ({LIBRARY}); or export with --backend reference'
    )
