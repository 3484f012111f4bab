"""What the tests of our operators for ONNX Runtime and OpenVINO share."""

import functools

import torch

from mmlaplace.deployment import onnx_ops
from mmlaplace.models.layers.pola_attention import pola_attention
from mmlaplace.ops.cholesky_inverse import cholesky_inverse_reference
from mmlaplace.ops.gaussian_kernel import gaussian_kernel_reference
from mmlaplace.ops.landmark_attention import whole_landmark_attention
from mmlaplace.ops.laplacian_kernel import laplacian_kernel_reference
from mmlaplace.ops.linear_attention import linear_attention_reference
from mmlaplace.ops.nystrom_attention import nystrom_attention_reference

INPUTS = ('q', 'k', 'v', 'landmarks', 'inverse', 'scale', 'rotary')
WHOLE_INPUTS = ('q', 'k', 'v', 'map', 'gamma', 'rotary')
NYSTROM = [  # kernel, whitening, adjacent, rotary
    ('laplacian', 1e-5, False, True),
    ('laplacian', -1.0, True, True),
    ('gaussian', 1e-5, False, False),
]
KERNELS = dict(laplacian=laplacian_kernel_reference, gaussian=gaussian_kernel_reference)
# How many axes inputs have. OpenVINO needs their number, and ONNX Runtime does not.
AXES = dict(
    dict.fromkeys(('q', 'k', 'v', 'top_q', 'top_k', 'landmarks', 'inverse', 'mat'), 4),
    power=3,
    shift=3,
    rotary=3,
    scale=2,
    gamma=1,
    map=1,
)


@functools.cache
def openvino_has_bf16():
    """Whether OpenVINO has bf16 on this processor. Elsewhere it refuses it or computes in fp32."""
    import openvino

    return 'BF16' in openvino.Core().get_property('CPU', 'OPTIMIZATION_CAPABILITIES')


def file_of(operator, inputs, given=None, **attributes):
    """The bytes of an ONNX file with one operator, of inputs of any size.

    ``given`` has those that are there, if some between the others are absent.
    """
    from onnx import TensorProto, helper

    names = [name if given is None or name in given else '' for name in inputs]
    node = helper.make_node(operator, names, ['out'], domain=onnx_ops.DOMAIN, **attributes)
    values = []
    for name in (*filter(None, names), 'out'):
        kind = TensorProto.INT64 if name == 'map' else TensorProto.FLOAT
        axes = AXES.get(name)
        shape = None if axes is None else [f'{name}_{axis}' for axis in range(axes)]
        values.append(helper.make_tensor_value_info(name, kind, shape))
    graph = helper.make_graph([node], 'one', values[:-1], values[-1:])
    opsets = [helper.make_opsetid(*one) for one in (('', 18), (onnx_ops.DOMAIN, onnx_ops.VERSION))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def problem(queries, marks, dims, kernel, rotary):
    """Inputs of an attention, tokens as ``(B, heads, N, d)``."""
    q, k, v = torch.randn(3, 2, 2, queries, dims)
    landmarks = torch.randn(2, 2, marks, dims)
    matrix = KERNELS[kernel](landmarks, landmarks, 4.0)
    inputs = dict(q=q, k=k, v=v, landmarks=landmarks, scale=torch.randn(2, 2).exp())
    inputs['inverse'] = cholesky_inverse_reference(matrix, 1e-2)
    return inputs | (dict(rotary=turns(dims, queries)) if rotary else {})


def nystrom_cases(kernel, whitening, adjacent, rotary):
    """An ONNX file of a Nyström attention; inputs of it and its output, of three sizes.

    The operator has tokens as ``(B, N, heads, d)``.
    """
    options = dict(kernel=kernel, bandwidth=4.0)
    attributes = dict(options, whitening=whitening, adjacent=int(adjacent))
    content = file_of('NystromAttention', INPUTS if rotary else INPUTS[:-1], **attributes)
    cases = []
    for sizes in ((1, 4, 8), (97, 9, 17), (1025, 3, 59)):
        inputs = problem(*sizes, kernel, rotary)
        expected = nystrom_attention_reference(
            **dict(dict(rotary=None), **inputs),
            **options,
            whitening_eps=whitening if whitening > 0 else None,
            rotary_form='pairs' if adjacent else 'half',
        )
        given = inputs | {name: inputs[name].transpose(1, 2) for name in 'qkv'}
        cases.append((given, expected.transpose(1, 2)))
    return content, cases


def turns(dims, tokens):
    """Cosines and sines ``(2, pairs, N)``."""
    angles = torch.randn(dims // 2, tokens)
    return torch.stack((angles.cos(), angles.sin()))


def whole_problem(
    heads,
    hw_shape,
    cells=(5, 5),
    ratio=0,
    kernel='laplacian',
    whitening=1e-5,
    floor=-1.0,
    of_queries=False,
    adjacent=False,
    rotary=True,
    gamma=True,
    dims=16,
):
    """Inputs and attributes of the whole mixing rule, and its output ``(B, N, heads, d)``."""
    torch.manual_seed(heads)
    tokens = hw_shape[0] * hw_shape[1]
    q, k, v = torch.randn(3, 2, tokens, heads, dims)
    floor_of = floor if floor >= 0 else None
    whitening = whitening if floor < 0 else -1.0
    inputs = dict(q=q, k=k, v=v, map=torch.tensor([*hw_shape, *((0, 0) if ratio else cells)]))
    if gamma and floor_of is None:
        inputs['gamma'] = torch.rand(heads) + tokens**0.5
    if rotary:
        inputs['rotary'] = turns(dims, tokens)
    expected = whole_landmark_attention(
        *(x.transpose(1, 2) for x in (q, k, v)),
        inputs.get('gamma'),
        inputs.get('rotary'),
        'pairs' if adjacent else 'half',
        *hw_shape,
        *((None, None, ratio) if ratio else (*cells, None)),
        kernel,
        4.0,
        1e-2,
        whitening if whitening >= 0 else None,
        floor_of,
        of_queries,
    )
    attributes = dict(
        kernel=kernel,
        bandwidth=4.0,
        whitening=whitening,
        floor=floor,
        ridge=1e-2,
        adjacent=int(adjacent),
        ratio=ratio,
        of_queries=int(of_queries),
    )
    return inputs, attributes, expected.transpose(1, 2)


LINEAR_INPUTS = ('q', 'k', 'v', 'top_q', 'top_k', 'power', 'shift')
LINEAR = [  # queries, keys, channels, features, streams, whether there is a numerator
    (1, 1, 8, 'relu', 1, False),
    (130, 17, 17, 'elu_plus_one', 1, False),
    (300, 2100, 32, 'elu_plus_one', 1, True),
    (9, 200, 6, 'none', 2, False),
    (129, 129, 12, 'none', 2, True),
    (130, 1100, 17, 'powers', 2, False),
]


def linear_problem(queries, keys, dims, features, streams, with_numerator):
    """An ONNX file of an attention by products of features, its inputs, and its output.

    Tokens are ``(B, N, heads, d)``.
    """
    torch.manual_seed(queries)
    heads, eps = 3, 1e-3
    q, top_q = torch.randn(2, 2, heads, queries, dims)
    k, v, top_k = torch.randn(3, 2, heads, keys, dims)
    if features == 'none':
        q, k, top_q, top_k = (x.abs() for x in (q, k, top_q, top_k))
    tops = dict(top_q=top_q, top_k=top_k) if with_numerator else {}
    exponents = {}
    if features == 'powers':
        exponents = dict(
            power=1 + 3 * torch.rand(heads, 1, dims), shift=torch.randn(heads, 1, dims)
        )
        expected = pola_attention(q, k, v, **exponents, eps=eps)
    else:
        numerator = (top_q, top_k) if with_numerator else (None, None)
        expected = linear_attention_reference(q, k, v, *numerator, eps, features, streams)
    tokens = {name: x.transpose(1, 2) for name, x in dict(q=q, k=k, v=v, **tops).items()}
    given = tokens | exponents
    attributes = dict(features=features, eps=eps, streams=streams)
    content = file_of('LinearAttention', LINEAR_INPUTS, given=given, **attributes)
    return content, given, expected.transpose(1, 2)
