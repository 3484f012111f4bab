"""The CUDA attentions and landmarks, run on a CPU: host code as it is, device code by threads.

What launches kernels on a GPU is not in it. ``native/gpu_ops_on_cpu.cpp`` has ops of its own.
"""

import os
import shutil
import subprocess
from collections import Counter

import pytest
import torch
from conftest import ROOT
from test_pooled_landmarks import table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import cpp_extension

from mmlaplace.analysis.recording import steps_watched
from mmlaplace.models import LaplacianAttention
from mmlaplace.ops import _native, laplacian_kernel
from mmlaplace.ops.kernel_attention import kernel_attention_reference
from mmlaplace.ops.landmark_attention import whole_landmark_attention
from mmlaplace.ops.linear_attention import linear_attention_reference
from mmlaplace.ops.normalized_nystrom_attention import normalized_nystrom_attention_reference
from mmlaplace.ops.nystrom_attention import nystrom_attention_reference
from mmlaplace.ops.pooled_landmarks import pooled_landmarks_reference

COMPILER = os.environ.get('CXX') or 'g++'
pytestmark = [
    pytest.mark.build,
    pytest.mark.thorough,  # about the development
    pytest.mark.xdist_group('gpu_code'),  # which is compiled once in a process
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f'no compiler {COMPILER}'),
]
PLENTY = 227 << 10  # bytes of shared memory, as a block of an H100 can have


@pytest.fixture(scope='module')
def library(tmp_path_factory):
    library = tmp_path_factory.mktemp('gpu_ops') / 'gpu_ops_on_cpu.so'
    folders = [f'-isystem{path}' for path in cpp_extension.include_paths()]
    libraries = [f'-L{path}' for path in cpp_extension.library_paths()]
    abi = f'-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}'
    command = [
        COMPILER,
        '-std=c++17',
        '-O1',
        '-Wall',
        '-Werror',
        '-Wno-unknown-pragmas',
        '-fPIC',
        '-shared',
        '-pthread',
        abi,
        *folders,
        ROOT / 'tests/ops/native/gpu_ops_on_cpu.cpp',
        *libraries,
        '-lc10',
        '-ltorch_cpu',
        '-o',
        library,
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    torch.ops.load_library(str(library))
    return torch.ops.mmlaplace_gpu_on_cpu


@pytest.fixture
def ops(library):
    library.set_shared_memory(PLENTY)
    library.set_tensor_cores(False)
    library.set_last_block_first(False)
    library.set_running(True)
    return library


def rotary(pairs, tokens):
    return table(tokens, pairs) if pairs else None


def assert_near(got, wanted, dtype, name):
    # Each is a sum of some hundred terms, and halves are rounded once, at the end.
    bound = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    error = (got.double() - wanted).abs().max() / wanted.abs().max()
    assert error < bound, f'{name}: {error:.2g}'


def assert_like(reference, inputs, arguments, out, gradients, grad):
    """Values and gradients are those that the reference has in fp64."""
    wide = [tensor.double().requires_grad_() for tensor in inputs]
    wanted = reference(*wide, *arguments)
    assert_near(out, wanted, out.dtype, 'out')
    expected = torch.autograd.grad(wanted, wide, grad.double())
    for index, (tensor, got, right) in enumerate(zip(inputs, gradients, expected)):
        assert got.dtype == tensor.dtype
        assert_near(got, right, inputs[0].dtype, f'gradient {index}')


F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
ATTENTIONS = {
    # name: ((B, heads, N, n, m, d), pairs, form, kernel, whitening_eps, dtype, shared memory)
    'three parts': ((1, 1, 130, 140, 5, 4), 0, 'half', 'laplacian', 1e-2, F32, PLENTY),
    'many landmarks': ((1, 1, 17, 17, 65, 4), 0, 'half', 'laplacian', 1e-2, F64, PLENTY),
    'small tiles': ((2, 1, 70, 70, 9, 6), 2, 'half', 'laplacian', 1e-2, F64, PLENTY),
    'no whitening': ((1, 2, 40, 50, 5, 4), 0, 'half', 'gaussian', None, F64, PLENTY),
    'global memory': ((1, 1, 40, 40, 9, 6), 3, 'pairs', 'gaussian', 1e-2, F64, 0),
    'large tiles': ((1, 1, 70, 70, 49, 32), 16, 'half', 'laplacian', 1e-2, F32, PLENTY),
    'halves': ((1, 1, 70, 70, 9, 8), 2, 'pairs', 'laplacian', 1e-2, BF16, PLENTY),
    'halves, little memory': ((1, 1, 40, 40, 9, 8), 2, 'pairs', 'laplacian', 1e-2, BF16, 0),
}


def attention_inputs(sizes, pairs, dtype):
    batch, heads, queries, keys, marks, dims = sizes
    tokens = torch.randn(batch, queries, heads, dims, dtype=torch.float64).transpose(1, 2)
    others = torch.randn(2, batch, heads, keys, dims, dtype=torch.float64)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    small = (
        torch.randn(batch, heads, marks, dims, dtype=wide),
        torch.randn(batch, heads, marks, marks, dtype=wide) / 4,
        torch.randn(batch, heads, dtype=wide),
    )
    return [tokens.to(dtype), *others.to(dtype).unbind(), *small], rotary(pairs, queries)


def attend(ops, inputs, table, constants, grad=None):
    """The output, what is kept, and the gradients."""
    out, *kept = ops.nystrom_attention(*inputs, table, *constants)
    grad = out if grad is None else grad
    grads = ops._nystrom_attention_backward(grad, *inputs, table, *kept, *constants)
    return out, kept, grads


@pytest.mark.parametrize(
    ('case', 'by_tensor_cores'),
    [
        *((case, False) for case in ATTENTIONS),
        ('large tiles', True),
        ('halves', True),
    ],
)
def test_attention_for_gpus_has_the_values_and_gradients_of_the_reference(
    ops, case, by_tensor_cores
):
    sizes, pairs, form, kernel, whitening_eps, dtype, shared_memory = ATTENTIONS[case]
    ops.set_shared_memory(shared_memory)
    ops.set_tensor_cores(by_tensor_cores)
    inputs, table = attention_inputs(sizes, pairs, dtype)
    constants, grad = (kernel, 3.0, whitening_eps, form), torch.randn_like(inputs[0])
    out, kept, gradients = attend(ops, inputs, table, constants, grad)
    ops.set_last_block_first(True)  # a GPU promises no order
    again, kept_again, gradients_again = attend(ops, inputs, table, constants, grad)
    runs = (out, *kept, *gradients), (again, *kept_again, *gradients_again)
    assert all(map(torch.equal, *runs))
    assert out.dtype == dtype and out.transpose(1, 2).is_contiguous()
    arguments = (table, *constants)
    assert_like(nystrom_attention_reference, inputs, arguments, out, gradients, grad)


def normalized_inputs(case):
    """Those of an attention, with an inverse whose sums are not near zero, and its arguments."""
    sizes, pairs, form, kernel, _, dtype, shared_memory = ATTENTIONS[case]
    (*inputs, inverse, _), table = attention_inputs(sizes, pairs, dtype)
    inverse = inverse.abs() + torch.eye(sizes[4], dtype=inverse.dtype)
    return [*inputs, inverse], (table, kernel, 3.0, 1e-6, form), shared_memory


def attend_normalized(ops, inputs, arguments, grad):
    out, *kept = ops.normalized_nystrom_attention(*inputs, *arguments)
    table, *constants = arguments
    gradients = ops._normalized_nystrom_attention_backward(grad, *inputs, table, *kept, *constants)
    return out, kept, gradients


@pytest.mark.parametrize('case', ATTENTIONS)
def test_normalized_attention_for_gpus_has_the_values_and_gradients_of_the_reference(ops, case):
    inputs, arguments, shared_memory = normalized_inputs(case)
    ops.set_shared_memory(shared_memory)
    grad = torch.randn_like(inputs[0])
    out, kept, gradients = attend_normalized(ops, inputs, arguments, grad)
    ops.set_last_block_first(True)  # a GPU promises no order
    again, kept_again, gradients_again = attend_normalized(ops, inputs, arguments, grad)
    runs = (out, *kept, *gradients), (again, *kept_again, *gradients_again)
    assert all(map(torch.equal, *runs))
    assert out.dtype == inputs[0].dtype and out.transpose(1, 2).is_contiguous()
    assert_like(normalized_nystrom_attention_reference, inputs, arguments, out, gradients, grad)


def test_normalized_attention_for_gpus_has_a_floor_of_the_sums(ops):
    inputs, arguments, _ = normalized_inputs('no whitening')
    inputs[-1] = -inputs[-1]  # so that all sums are negative
    grad = torch.randn_like(inputs[0])
    arguments = (*arguments[:3], 0.5, arguments[4])
    out, _, gradients = attend_normalized(ops, inputs, arguments, grad)
    assert_like(normalized_nystrom_attention_reference, inputs, arguments, out, gradients, grad)


@pytest.mark.parametrize('sizes', [(0, 2, 5, 5, 3, 4), (1, 2, 0, 5, 3, 4), (1, 1, 5, 0, 3, 4)])
def test_normalized_attention_for_gpus_takes_no_tokens(ops, sizes):
    (*inputs, inverse, _), _ = attention_inputs(sizes, 0, torch.float32)
    inputs.append(inverse)
    arguments = (None, 'laplacian', 3.0, 1e-6, 'half')
    out, _, gradients = attend_normalized(ops, inputs, arguments, torch.ones_like(inputs[0]))
    assert all(tensor.isfinite().all() for tensor in (out, *gradients))


EXACT = {
    # name: ((B, heads, N, n, d), pairs, form, kernel, dtype, shared memory)
    'small tiles': ((2, 1, 40, 40, 6), 2, 'half', 'laplacian', F64, PLENTY),
    'other keys': ((1, 2, 20, 50, 5), 0, 'half', 'gaussian', F64, PLENTY),
    'global memory': ((1, 1, 40, 40, 6), 3, 'pairs', 'gaussian', F64, 0),
    'large tiles': ((1, 1, 140, 140, 32), 16, 'half', 'laplacian', F32, PLENTY),
    'far tokens': ((1, 1, 70, 130, 8), 0, 'half', 'laplacian', F32, PLENTY),
    'halves': ((1, 1, 70, 70, 8), 2, 'pairs', 'laplacian', BF16, PLENTY),
    'halves, little memory': ((1, 1, 40, 40, 8), 2, 'pairs', 'laplacian', BF16, 0),
}


@pytest.mark.parametrize('case', EXACT)
def test_exact_attention_for_gpus_has_the_values_and_gradients_of_the_reference(ops, case):
    (batch, heads, queries, keys, dims), pairs, form, kernel, dtype, shared_memory = EXACT[case]
    ops.set_shared_memory(shared_memory)
    q, k, v = (
        torch.randn(batch, tokens, heads, dims, dtype=F64).transpose(1, 2)
        for tokens in (queries, keys, keys)
    )
    if case == 'far tokens':  # the kernels of most queries are zero, and the nearest keys come last
        q, k = 100 + q, 200 * torch.linspace(-1, 1, keys, dtype=F64).view(-1, 1) + k
    inputs, table = [tensor.to(dtype) for tensor in (q, k, v)], rotary(pairs, queries)
    grad = torch.randn(batch, heads, queries, dims, dtype=F64).to(dtype)
    constants = (kernel, 3.0, form)
    out, *kept = ops.kernel_attention(*inputs, table, *constants)
    gradients = ops._kernel_attention_backward(grad, *inputs, table, *kept, *constants)
    assert all(x.transpose(1, 2).is_contiguous() for x in (out, *gradients))
    assert out.dtype == dtype
    arguments = (table, *constants)
    assert_like(kernel_attention_reference, inputs, arguments, out, gradients, grad)


@pytest.mark.parametrize('sizes', [(0, 2, 5, 5, 4), (1, 2, 0, 5, 4), (1, 1, 5, 0, 4)])
def test_exact_attention_for_gpus_takes_no_tokens(ops, sizes):
    batch, heads, queries, keys, dims = sizes
    q = torch.randn(batch, heads, queries, dims)
    k, v = torch.randn(2, batch, heads, keys, dims)
    constants = ('laplacian', 3.0, 'half')
    out, *kept = ops.kernel_attention(q, k, v, None, *constants)
    gradients = ops._kernel_attention_backward(q, q, k, v, None, *kept, *constants)
    assert not any(tensor.any() for tensor in (out, *gradients))


@pytest.mark.parametrize(
    ('dtype', 'whitening_eps'),
    [
        (torch.float32, 1e-5),
        (torch.float32, None),
        (torch.float16, 1e-5),
        (torch.bfloat16, 1e-5),
    ],
)
def test_tensor_cores_are_as_accurate_as_fp32(ops, dtype, whitening_eps):
    (*tokens, landmarks, _, scale), _ = attention_inputs((1, 1, 64, 45, 33, 12), 0, dtype)
    landmarks = landmarks.double()
    # Landmarks that are close, so that products are differences of large numbers.
    landmarks = landmarks[:, :, :1] + 0.3 * landmarks
    inverse = torch.linalg.inv(laplacian_kernel(landmarks, landmarks, 16.0)).float()
    inputs = (*tokens, landmarks.float(), inverse, scale)
    constants = ('laplacian', 16.0, whitening_eps, 'half')
    wanted = nystrom_attention_reference(*(x.double() for x in inputs), None, *constants)

    def error():
        return (ops.nystrom_attention(*inputs, None, *constants)[0].double() - wanted).norm()

    by_threads = error()
    ops.set_tensor_cores(True)
    by_cores = error()
    assert 0 < by_cores < 2 * by_threads  # they round otherwise, and no worse


# Its power -3/2 is infinite in fp32.
@pytest.mark.parametrize('whitening_eps', [1e-30, 1e-2])
@pytest.mark.parametrize('sizes', [(1, 1, 5, 5, 3, 4), (0, 2, 5, 5, 3, 4), (1, 2, 0, 5, 3, 4)])
def test_empty_inputs_and_a_tiny_whitening_leave_no_nan(ops, sizes, whitening_eps):
    inputs, _ = attention_inputs(sizes, 0, torch.float32)
    out, kept, grads = attend(ops, inputs, None, ('laplacian', 3.0, whitening_eps, 'half'))
    assert all(tensor.isfinite().all() for tensor in (out, *grads))


POOLS = {
    # name: ((B, heads, H, W, d), pairs, form, (rows, columns, ratio), dtype)
    'adaptive': ((2, 2, 9, 7, 6), 3, 'half', (3, 2, None), torch.float64),
    'squares': ((1, 1, 7, 9, 8), 2, 'pairs', (None, None, 4), torch.float32),
    'halves': ((1, 2, 14, 14, 32), 16, 'half', (7, 7, None), torch.bfloat16),
}


@pytest.mark.parametrize('case', POOLS)
def test_pooling_for_gpus_has_the_values_and_gradients_of_the_reference(ops, case):
    (batch, heads, height, width, dims), pairs, form, cells, dtype = POOLS[case]
    table = rotary(pairs, height * width)
    k = torch.randn(batch, height * width, heads, dims, dtype=torch.float64)
    k = k.transpose(1, 2).to(dtype)
    constants = (table, form, height, width, *cells)
    out = ops.pooled_landmarks(k, *constants)
    grad = torch.randn_like(out)
    dk = ops._pooled_landmarks_backward(grad, k, *constants)

    assert out.dtype == (F64 if dtype == F64 else F32)
    assert dk.transpose(1, 2).is_contiguous()
    assert_like(pooled_landmarks_reference, [k], constants, out, [dk], grad)


LINEAR = {
    # name: ((B, heads, N, n, f, d), features, streams, numerator, dtype, shared memory)
    'small tiles': ((2, 2, 20, 35, 6, 5), 'elu_plus_one', 2, True, F64, PLENTY),
    'global memory': ((1, 1, 20, 300, 9, 6), 'relu', 1, False, F64, 0),
    'large tiles': ((1, 1, 70, 300, 12, 8), 'elu_plus_one', 1, False, F32, PLENTY),
    'halves': ((2, 1, 70, 66, 12, 20), 'none', 2, False, BF16, PLENTY),
    'halves, little memory': ((1, 1, 40, 20, 8, 8), 'relu', 1, True, BF16, 0),
}


@pytest.mark.parametrize(
    ('case', 'by_tensor_cores'),
    [
        *((case, False) for case in LINEAR),
        ('large tiles', True),
        ('halves', True),
    ],
)
def test_linear_attention_for_gpus_has_the_values_and_gradients_of_the_reference(
    ops, case, by_tensor_cores
):
    (batch, heads, queries, keys, width, dims), *constants, top, dtype, shared_memory = LINEAR[case]
    ops.set_shared_memory(shared_memory)
    ops.set_tensor_cores(by_tensor_cores)
    sizes = [(queries, width), (keys, width), (keys, dims), (queries, width), (keys, width)]
    # Of one sign if they are features already, so that no normaliser is near zero.
    make = torch.rand if constants[0] == 'none' else torch.randn
    inputs = [
        make(batch, n, heads, c, dtype=torch.float64).transpose(1, 2).to(dtype)
        for n, c in sizes[: 5 if top else 3]
    ]
    none = [None] * (5 - len(inputs))
    grad = torch.randn_like(inputs[2][:, :, :1].expand(-1, -1, queries, -1))

    def attend():
        out, sums = ops.linear_attention(*inputs, *none, 1e-3, *constants)
        arguments = (grad, *inputs, *none, sums, 1e-3, *constants)
        return out, *ops._linear_attention_backward(*arguments)

    out, *gradients = attend()
    assert all(map(torch.equal, (out, *gradients), attend()))
    assert out.dtype == dtype and out.transpose(1, 2).is_contiguous()
    arguments = (*none, 1e-3, *constants)
    assert_like(linear_attention_reference, inputs, arguments, out, gradients, grad)


WHOLE = {
    # name: ((B, heads, H, W, d), pairs, (rows, columns, ratio), kernel, eps, gamma?, dtype)
    'laplacian': ((2, 1, 6, 8, 6), 3, (3, 3, None), 'laplacian', 1e-2, True, torch.float64),
    'gaussian': ((1, 2, 7, 5, 4), 0, (None, None, 2), 'gaussian', None, False, torch.float32),
    'halves': ((1, 1, 7, 10, 32), 16, (7, 7, None), 'laplacian', 1e-5, True, torch.bfloat16),
}


@pytest.mark.parametrize('case', WHOLE)
def test_the_op_with_landmarks_and_inverse_is_the_composition(ops, case):
    (batch, heads, height, width, dims), pairs, cells, kernel, eps, scaled, dtype = WHOLE[case]
    tokens = height * width
    q, k, v = torch.randn(3, batch, tokens, heads, dims, dtype=torch.float64).transpose(2, 3)
    gamma = torch.rand(heads, dtype=torch.float64) * tokens**0.5 if scaled else None
    table = rotary(pairs, tokens)
    constants = ('half', height, width, *cells, kernel, 3.0, 1e-2, eps)
    inputs = [tensor.to(dtype) for tensor in (q, k, v)]
    out = ops._landmark_attention(*inputs, gamma, table, *constants)
    wide = (tensor.double() for tensor in inputs)
    wanted = whole_landmark_attention(*wide, gamma, table, *constants)
    # The inverse has a condition number of up to the landmarks by the ridge.
    bound = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    assert out.dtype == dtype and out.transpose(1, 2).is_contiguous()
    assert (out.double() - wanted).abs().max() < bound * wanted.abs().max()


# Views, memory, and what calls others that are counted. The rest is taken for one launch each.
NO_LAUNCH = {
    'contiguous',
    'conv2d',
    'convolution',
    'dropout',
    'empty',
    'empty_strided',
    'expand',
    'flatten',
    'linear',
    'narrow',
    'new_ones',
    'permute',
    'reshape',
    '_reshape_alias',
    'resolve_conj',
    'split',
    'split_with_sizes',
    'squeeze',
    't',
    'to',
    '_to_copy',
    'transpose',
    'unsqueeze',
    'view',
    'as_strided',
    'alias',
    'detach',
    'select',
    'slice',
    'zeros',
    'full',
}


def launches(ops, run):
    """What a GPU would launch: kernels of ours by the counter, and others by torch's operations."""
    run()  # fills the cache of rotary tables
    before = ops.launches_so_far()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    found = Counter(ours=ops.launches_so_far() - before)
    rest = [event for event in profile.events() if event.cpu_parent is None]
    while rest:
        event = rest.pop()
        kind, _, name = event.name.rpartition('::')
        if kind == 'aten' and name not in NO_LAUNCH:
            found[name] += 1
        else:
            rest += event.cpu_children
    return dict(found)


# The first and last stages of laplacianformer-tiny, at 224 x 224.
@pytest.mark.parametrize('autocast', [False, True])
@pytest.mark.parametrize(('embed_dims', 'side'), [(64, 56), (512, 7)])
def test_a_whole_attention_at_batch_1_has_few_launches(
    ops, monkeypatch, embed_dims, side, autocast
):
    attention = LaplacianAttention(embed_dims, embed_dims // 32, (side, side)).eval()
    monkeypatch.setattr(attention, 'mix', attention.mix_in_one_op)
    monkeypatch.setattr(_native, 'compiled', lambda name: getattr(ops, name).default)
    ops.set_running(False)
    x = torch.randn(1, side * side, embed_dims)

    @torch.inference_mode()
    def run():
        with torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            attention(x, (side, side))

    found = launches(ops, run)
    # Autocast converts the input, and the weights and biases of three layers.
    copies = dict(copy_=7) if autocast else {}
    assert found == dict(ours=5, addmm=2, _convolution=1, add=1, **copies)


@pytest.fixture
def fake_gpu(monkeypatch):
    if _native.WHY_MISSING is not None or _native.find('_landmark_attention') is None:
        pytest.skip('the compiled library is missing, or older')
    monkeypatch.setitem(_native.AVAILABLE, '_landmark_attention', frozenset(['cuda']))
    monkeypatch.setattr(_native, 'why_not_on_this_gpu', lambda: None)
    with FakeTensorMode(), torch.device('cuda'), torch.no_grad():
        yield


def test_a_graph_for_a_gpu_has_the_mixing_rule_as_one_node(fake_gpu):
    attention, x = LaplacianAttention(64, 2, (14, 14)).eval(), torch.randn(1, 15 * 20, 64)
    graph = make_fx(lambda x: attention(x, (15, 20)))(x)
    nodes = [str(node.target) for node in graph.graph.nodes if 'mmlaplace' in str(node.target)]
    assert nodes == ['mmlaplace._landmark_attention.default']


def test_on_a_gpu_the_inverse_and_the_landmarks_can_be_watched(fake_gpu):
    attention, seen = LaplacianAttention(64, 2, (14, 14)).eval(), []
    with steps_watched(attention, LaplacianAttention, ('invert',), lambda *made: seen.append(made)):
        attention(torch.randn(1, 15 * 20, 64), (15, 20))
    attention.landmarks.register_forward_hook(lambda *made: seen.append(made))
    attention(torch.randn(1, 15 * 20, 64), (15, 20))
    assert len(seen) == 2
