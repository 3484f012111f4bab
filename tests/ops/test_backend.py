"""Who computes, by context and environment, at once or after checks, and under which autocast."""

import contextlib
import functools
import importlib.util
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from called_ops import Called
from conftest import needs_torch, run_python
from op_results import results
from test_contracts import OPS, example
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import mmlaplace
from mmlaplace.models.layers import TransformerBlock
from mmlaplace.ops import (
    _native,
    cholesky_inverse,
    current_backend,
    gaussian_kernel,
    laplacian_kernel,
    newton_schulz_inverse,
    precision,
    use_backend,
)
from mmlaplace.ops._inverse import check_room
from mmlaplace.ops.backend import default_backend, with_current_backend
from mmlaplace.ops.laplacian_kernel import laplacian_kernel_reference
from mmlaplace.ops.newton_start_scale import newton_start_scale

Q, K = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 3, 4)


@pytest.fixture
def lines(monkeypatch):
    """The log lines of the loader, as in a new process."""
    found = []
    monkeypatch.setattr(_native, 'print_log', lambda line, **_: found.append(line))
    _native._log_fallback.cache_clear()
    yield found
    _native._log_fallback.cache_clear()


def test_auto_is_native_where_the_library_is(lines):
    for backend in ('auto', 'native', 'reference'):
        with Called() as called:
            laplacian_kernel(Q, K, 4.0, backend=backend)
        assert ('mmlaplace' in called.namespaces) == (backend != 'reference')
    assert lines == []


@pytest.mark.parametrize(
    ('content', 'line', 'error'),
    [
        (None, 'no compiled library', "no compiled.*no-build-isolation.*backend='auto'"),
        (b'not a library', 'did not load', '_C.so did not load with torch .*: '),
    ],
)
def test_without_a_library_auto_says_why_once_and_native_raises(
    lines, monkeypatch, tmp_path, content, line, error
):
    if content:
        (tmp_path / '_C.so').write_bytes(content)
    monkeypatch.setattr(_native, 'WHY_MISSING', _native.load_library(tmp_path))
    reference = laplacian_kernel(Q, K, 4.0, backend='reference')
    torch.testing.assert_close(laplacian_kernel(Q, K, 4.0), reference)
    gaussian_kernel(Q, K, 4.0)
    assert len(lines) == 1 and line in lines[0]
    for op, arguments in ((laplacian_kernel, (Q, K, 4.0)), (newton_schulz_inverse, (Q @ Q.mT,))):
        with pytest.raises(RuntimeError, match=error):
            op(*arguments, backend='native')


def test_the_library_of_this_torch_is_chosen(tmp_path):
    # Environments with different versions of torch may share a source folder.
    (tmp_path / '_C_a.so').write_bytes(b'\0mmlaplace built for torch=1.13;\0')
    assert 'compiled for torch 1.13, and this is torch' in _native.load_library(tmp_path)
    for library in Path(mmlaplace.__file__).parent.glob('_C*.so'):
        (tmp_path / library.name).symlink_to(library)
    assert _native.load_library(tmp_path) is None


def test_the_library_of_windows_is_found_too(tmp_path):
    (tmp_path / '_C.pyd').write_bytes(b'\0mmlaplace built for torch=1.13;\0')
    assert '_C.pyd was compiled for torch 1.13' in _native.load_library(tmp_path)
    (tmp_path / '_C.pyd').write_bytes(b'\0mmlaplace built for torch_from=2.0;\0')
    assert _native.serving_info(tmp_path) == dict(torch_from='2.0')
    (tmp_path / '_C.pyd').rename(tmp_path / '_C.dll')
    assert 'no compiled library' in _native.load_library(tmp_path)


@pytest.mark.parametrize(
    ('info', 'served'),
    [
        (
            {'torch_from': '2.10'},
            {'2.9.1': False, '2.10.0': True, '2.14.1+cpu': True, '3.0.0': True},
        ),
        ({'torch': '2.1'}, {'2.1.2+cpu': True, '2.10.0': False, '2.11.0': False}),
    ],
)
def test_a_library_of_the_stable_abi_serves_later_versions_of_torch_too(info, served):
    assert {version: _native.serves(info, version) for version in served} == served


@pytest.mark.parametrize(
    ('arches', 'gpu', 'said'),
    [
        *(('800,900,1000', gpu, None) for gpu in [(8, 0), (8, 6), (10, 3), (12, 0)]),
        ('800,900,1000', (7, 5), r'8\.0, 9\.0, 10\.0.*and this one has 7\.5'),
        ('750', (8, 0), None),
        ('750', (7, 0), r'7\.5.*and this one has 7\.0'),
        ('', (5, 0), None),  # of a library that does not say
    ],
)
def test_a_gpu_without_code_in_the_library_gets_the_reference(arches, gpu, said):
    found = _native.why_not_for(dict(arches=arches), gpu)
    assert re.search(said, found) if said else found is None


def test_gpus_are_asked_for_code_and_cpus_are_not(monkeypatch):
    monkeypatch.setattr(_native, 'AVAILABLE', {'laplacian_kernel': frozenset({'cpu', 'cuda'})})
    monkeypatch.setattr(_native, 'WHY_MISSING', None)
    monkeypatch.setattr(_native, 'why_not_on_this_gpu', lambda: 'it is old')
    assert _native.why_not('laplacian_kernel', 'cpu') is None
    assert _native.why_not('laplacian_kernel', 'cuda') == 'it is old'


def test_an_op_or_device_that_the_library_lacks(monkeypatch):
    monkeypatch.setattr(_native, 'AVAILABLE', {'laplacian_kernel': frozenset({'cuda'})})
    with pytest.raises(RuntimeError, match="no op 'gaussian_kernel'.*backend='auto'"):
        gaussian_kernel(Q, K, 4.0, backend='native')
    with use_backend('native'), pytest.raises(RuntimeError, match="'laplacian_kernel' for cpu"):
        laplacian_kernel(Q, K, 4.0)


# The instruction sets that this machine can run, by torch's names.
CAPABILITIES = ['default', 'avx2', 'avx512']


@pytest.mark.thorough
@pytest.mark.parametrize('capability', CAPABILITIES)
def test_every_instruction_set_passes_the_op_tests(capability):
    supported = torch.backends.cpu.get_cpu_capability().lower()
    known = supported if supported in CAPABILITIES else 'default'
    able = CAPABILITIES[: CAPABILITIES.index(known) + 1]
    if capability not in able or capability == os.environ.get('ATEN_CPU_CAPABILITY', supported):
        pytest.skip(f'this CPU has {supported}, by which the other tests run')
    files = ('contracts', 'kernels', 'inverse', 'nystrom_attention', 'pooled_landmarks', 'fused')
    result = run_python(
        '-m',
        'pytest',
        '-q',
        '-p',
        'no:cacheprovider',
        *(f'tests/ops/test_{name}.py' for name in files),
        '-k',
        '(native-cpu or fused) and not number_of_threads and not ten_thousand',
        ATEN_CPU_CAPABILITY=capability,
    )
    assert result.returncode == 0, result.stdout[-3000:]


def chosen(backend='auto'):
    """Who would compute the Laplacian kernel."""
    device = torch.device('cpu')
    op = _native.select('laplacian_kernel', laplacian_kernel_reference, device, backend)
    return 'reference' if op is laplacian_kernel_reference else 'native'


def test_ops_without_a_backend_have_that_of_the_context():
    assert (current_backend(), chosen()) == ('auto', 'native')
    with use_backend('reference'):
        assert (current_backend(), chosen()) == ('reference', 'reference')
        assert chosen('native') == 'native'  # the argument of an op wins
        kept = with_current_backend(chosen)
        with use_backend('auto'):
            assert chosen() == 'native'
        assert chosen() == 'reference'
    with use_backend('native'):
        assert chosen('reference') == 'reference'
    assert (current_backend(), chosen(), kept()) == ('auto', 'native', 'reference')
    assert use_backend('reference')(chosen)() == 'reference'
    with pytest.raises(ZeroDivisionError), use_backend('reference'):
        raise ZeroDivisionError
    assert current_backend() == 'auto'


def test_the_environment_is_read_and_another_name_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="one of .*'reference'.*, got 'cuda'"), use_backend('cuda'):
        pass
    for value, expected in (('reference', 'reference'), ('', 'auto')):
        monkeypatch.setenv('MMLAPLACE_BACKEND', value)
        spec = importlib.util.find_spec('mmlaplace.ops.backend')
        imported = importlib.util.module_from_spec(spec)  # as another process has it
        spec.loader.exec_module(imported)
        assert imported.current_backend() == expected
    monkeypatch.setenv('MMLAPLACE_BACKEND', 'gpu')
    with pytest.raises(ValueError, match="MMLAPLACE_BACKEND .*, got 'gpu'"):
        default_backend()


def test_every_thread_has_its_own():
    with ThreadPoolExecutor(1) as other, use_backend('reference'):
        assert other.submit(chosen).result() == 'native'
        inner = use_backend('native')
        other.submit(inner.__enter__).result()
        assert (other.submit(current_backend).result(), chosen()) == ('native', 'reference')
        other.submit(inner.__exit__, None, None, None).result()


def test_a_checkpoint_computes_again_with_the_backend_of_the_forward(monkeypatch):
    attn_cfg = dict(type='LaplacianAttention', embed_dims=8, num_heads=2, input_resolution=(4, 4))
    block = TransformerBlock(8, dict(attn_cfg, num_landmarks=4), with_cp=True)
    select, calls = _native.select, []
    monkeypatch.setattr(_native, 'select', lambda *a: calls.append(select(*a)) or calls[-1])
    with use_backend('reference'):
        out = block(torch.randn(1, 16, 8), (4, 4))
    forward = len(calls)
    out.sum().backward()
    assert len(calls) > forward > 0
    assert not any(isinstance(call, torch._ops.OpOverload) for call in calls)


@needs_torch(2, 4)
@pytest.mark.slow
def test_graphs_are_compiled_again_for_another_backend():
    torch._dynamo.reset()
    graphs = []
    kernel = torch.compile(
        laplacian_kernel,
        fullgraph=True,
        backend=lambda graph, _: graphs.append(graph.code) or graph,
    )
    kernel(Q, K, 4.0)
    with use_backend('reference'):
        kernel(Q, K, 4.0)
    kernel(Q, K, 4.0)
    assert ['mmlaplace' in code for code in graphs] == [True, False]


@pytest.mark.parametrize('op', [gaussian_kernel, laplacian_kernel])
def test_meta_halves_stay_halves(op):
    q = torch.empty(1, 1, 3, 2, device='meta', dtype=torch.bfloat16)
    with torch.autocast('cpu', dtype=torch.bfloat16):  # of another device
        assert op(q, q, 1.0).dtype == torch.bfloat16


# On a CPU torch's products compute linear_attention.
names = pytest.mark.parametrize('name', [name for name in OPS if name != 'linear_attention'])
INVERSES = {
    'cholesky_inverse': cholesky_inverse,
    'newton_schulz_inverse': newton_schulz_inverse,
    'newton_start_scale': functools.partial(
        newton_start_scale, factor=1.8, halve=True, per_batch=False
    ),
}
inverses = pytest.mark.parametrize('name', INVERSES)


@names
def test_the_short_way_has_the_values_and_derivatives_of_the_long_one(name):
    tensors, options = example(name)
    leaves = [tensor.requires_grad_() for tensor in tensors.values()]

    def derivatives(backend):
        out = OPS[name](**tensors, **options, backend=backend)
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(value.sin().sum() for value in first), leaves)
        return (out, *first, *second)

    torch.testing.assert_close(derivatives('auto'), derivatives('native'), rtol=0, atol=0)


@names
def test_transforms_of_torch_func_are_those_of_the_long_way(name):
    tensors, options = example(name)

    def transformed(backend):
        def call(*values):
            return OPS[name](**dict(zip(tensors, values)), **options, backend=backend)

        def loss(*values):
            return call(*values).sin().sum()

        values = tuple(tensors.values())
        batches = [torch.stack([value, value]) for value in values]
        return torch.func.grad(loss)(*values), torch.func.vmap(call)(*batches)

    torch.testing.assert_close(transformed('auto'), transformed('native'), rtol=0, atol=0)


@names
@pytest.mark.parametrize('context', [torch.no_grad, torch.enable_grad])
def test_no_derivative_in_forward_mode_is_left_out_silently(name, context):
    tensors, options = example(name)
    with context(), forward_ad.dual_level(), pytest.raises(NotImplementedError, match='jvp'):
        duals = {
            key: forward_ad.make_dual(value, torch.ones_like(value))
            for key, value in tensors.items()
        }
        OPS[name](**duals, **options)


class FailsOnce(TorchDispatchMode):
    """The first compiled op in its context raises an error. The others compute."""

    def __init__(self, error):
        super().__init__()
        self.error, self.calls = error, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == 'mmlaplace':
            self.calls += 1
            if self.calls == 1:
                raise self.error
        return function(*args, **(kwargs or {}))


ERRORS = [
    getattr(torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError)('CUDA out of memory'),
    RuntimeError('DefaultCPUAllocator: not enough memory'),
    RuntimeError('CUDA error: an illegal memory access was encountered'),
    NotImplementedError('there is no such kernel'),
]


@pytest.fixture
def on_a_gpu(monkeypatch):
    """linear_attention takes the compiled op, as it does on a GPU."""
    module = importlib.import_module('mmlaplace.ops.linear_attention')
    monkeypatch.setattr(module, '_pays', lambda *_: True)


def call_of(name, dtype=torch.float32):
    """A call of an op with inputs that are there already."""
    if name == 'newton_start_scale':
        return functools.partial(INVERSES[name], torch.eye(3, dtype=dtype))
    tensors, options = example(name, dtype)
    return functools.partial(OPS[name], **tensors, **options)


every = pytest.mark.parametrize('name', [*OPS, 'newton_start_scale'])


@every
@pytest.mark.parametrize('error', ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize('context', [torch.no_grad, torch.enable_grad])
def test_an_error_of_a_kernel_is_raised_and_nothing_is_tried_again(on_a_gpu, name, error, context):
    call = call_of(name)
    with context(), FailsOnce(error) as failing, pytest.raises(type(error), match=str(error)):
        call()
    assert failing.calls == 1


@every
def test_an_error_of_a_kernel_is_raised_under_autocast_too(on_a_gpu, name):
    call = call_of(name, torch.bfloat16)
    autocast, failing = torch.autocast('cpu', dtype=torch.bfloat16), FailsOnce(ERRORS[1])
    with autocast, failing, pytest.raises(RuntimeError, match='not enough memory'):
        call()
    assert failing.calls == 1


def test_kernels_widen_inputs_of_two_dtypes_under_autocast_before_they_may_fail():
    autocast, failing = torch.autocast('cpu', dtype=torch.bfloat16), FailsOnce(ERRORS[1])
    with autocast, failing, pytest.raises(RuntimeError, match='not enough memory'):
        laplacian_kernel(Q, K.bfloat16(), 4.0)
    assert failing.calls == 1


def test_too_little_memory_is_raised_where_a_gpu_may_have_no_room_too():
    """A GPU alone knows whether it has room for more than 64 rows, so can_run has doubts there."""

    def doubt(*_):
        raise ValueError('a GPU may have no room')

    at_once = _native.door('laplacian_kernel', doubt)
    with FailsOnce(ERRORS[0]), pytest.raises(type(ERRORS[0]), match='out of memory'):
        at_once('auto', Q, K, 4.0)
    with FailsOnce(ERRORS[1]):
        assert at_once('auto', Q, K, 4.0) is None
    for size, dtype, fits in ((64, torch.float32, True), (65, torch.float32, False)):
        mat = torch.empty(size, size, dtype=dtype, device='meta')
        with contextlib.nullcontext() if fits else pytest.raises(ValueError, match='for 65 rows'):
            check_room('cholesky_inverse', mat)


def test_too_little_memory_for_a_result_is_raised_at_once():
    tokens = torch.zeros(1, 1, 1, 1).expand(1, 1, 1 << 24, 1)  # of 2^50 bytes
    # An op of the stable ABI knows only that torch could not allocate it.
    with Called() as called, pytest.raises(RuntimeError, match='(?i)memory|empty failed'):
        laplacian_kernel(tokens, tokens, 4.0)
    assert [op.namespace for op in called.ops].count('mmlaplace') == 1


@every
def test_what_the_library_has_no_kernel_for_is_computed_by_the_reference(
    on_a_gpu, monkeypatch, lines, name
):
    call = call_of(name)
    expected = call()
    monkeypatch.setattr(_native, 'AVAILABLE', {})
    with FailsOnce(NotImplementedError('no kernel for this device')) as failing:
        torch.testing.assert_close(call(), expected, rtol=1e-4, atol=1e-5)
    assert failing.calls == 1 and len(lines) == 1 and 'has no op' in lines[0]


class OnGPU(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


def test_the_compiled_linear_attention_pays_on_a_gpu_for_what_it_has_room_and_derivatives():
    pays = importlib.import_module('mmlaplace.ops.linear_attention')._pays
    q, wide = (torch.rand(1, 1, 2, width).as_subclass(OnGPU) for width in (128, 129))
    assert pays(q, q, q, True) and not pays(q.as_subclass(torch.Tensor), q, q, True)
    assert not pays(wide, wide, q, True) and not pays(q, q, wide, True)
    assert not pays(q, q, q[0], True) and not pays(q, None, q, True)
    with forward_ad.dual_level():
        assert not pays(q, q, q, True)


def test_on_a_cpu_torchs_products_compute_linear_attention():
    with Called() as called:
        mmlaplace.ops.linear_attention(Q, Q, Q)
    assert 'mmlaplace' not in called.namespaces


def test_linear_attention_goes_at_once_where_its_op_is_faster(on_a_gpu):
    q, k, v = torch.rand(3, 1, 2, 6, 4).unbind()
    attend = mmlaplace.ops.linear_attention
    options = dict(eps=0.5, features='relu', streams=2, eps_of_sum=True, numerator=(k, q))
    for given, chosen in (
        ((q, k, v), {}),
        ((q, k.double(), v.half()), {}),
        ((q, k, v), options),
        ((q[:, :, :4], k, v), dict(eps=0.5, eps_of_sum=True)),
    ):
        expected = attend(*given, **chosen, backend='reference')
        with Called() as called:
            out = attend(*given, **chosen)
        assert 'mmlaplace' in called.namespaces and out.dtype == expected.dtype
        torch.testing.assert_close(out, expected)
    for bad in (dict(eps=-1.0), dict(eps=torch.ones(())), dict(features='exp')):
        with pytest.raises((TypeError, ValueError), match='linear_attention: .* must be'):
            attend(q, k, v, **bad)
    with pytest.raises(ValueError, match='at least one key'):
        attend(q, k[:, :, :0], v[:, :, :0], eps_of_sum=True)


def test_what_is_right_in_another_form_than_the_ops_is_computed():
    q = torch.randn(1, 2, 6, 4)
    attend, last = OPS['nystrom_attention'], (q[:, :, :3], torch.eye(3).expand(1, 2, 3, 3), 4.0)
    expected = attend(q, q.bfloat16().float(), q, *last)
    assert torch.equal(attend(q, q.bfloat16(), q, *last), expected)
    bandwidth = torch.tensor(4.0, requires_grad=True)
    assert laplacian_kernel(q, q, bandwidth).requires_grad


def large(size=513):
    points = torch.randn(2, 1, size, 32, dtype=torch.float64)
    return laplacian_kernel(points, points, 4.0)[:, 0]


@inverses
@pytest.mark.slow
def test_large_matrices_take_the_reference(name):
    mat, function = large(), INVERSES[name]
    reference = functools.partial(function, backend='reference')
    with Called() as called:
        out = function(mat)
    assert 'aten' in called.namespaces
    assert torch.equal(out, reference(mat))
    with pytest.raises(RuntimeError, match=f'{name}: .*at most 512 rows, got 513'):
        function(mat, backend='native')
    torch.testing.assert_close(torch.func.vmap(function)(mat), out)
    if name != 'newton_start_scale':
        found, expected = (
            results(one, dict(mat=mat), torch.ones_like(out)) for one in (function, reference)
        )
        assert all(map(torch.equal, found, expected))


class Inverse(torch.nn.Module):
    def forward(self, mat):
        return INVERSES[self.name](mat)


@needs_torch(2, 5)
@inverses
@pytest.mark.parametrize('size', [512, 513])
@pytest.mark.slow
def test_a_graph_holds_the_reference_for_large_matrices_alone(name, size):
    mat, module = large(size), Inverse()
    module.name = name
    program = torch.export.export(module, (mat,), strict=False)
    assert ('mmlaplace' in program.graph_module.code) == (size == 512)
    torch.testing.assert_close(program.module()(mat), module(mat))


def test_full_fp32_leaves_tf32_as_it_was(monkeypatch):
    settings = torch.backends.cuda.matmul
    name, allowed = 'fp32_precision', 'tf32'
    if not hasattr(torch._C, '_set_fp32_precision_setter'):
        name, allowed = 'allow_tf32', True
    monkeypatch.setattr(settings, name, allowed)
    with pytest.raises(ZeroDivisionError), precision.full_fp32(torch.device('cuda')):
        assert getattr(settings, name) in ('ieee', False)
        raise ZeroDivisionError
    with precision.full_fp32(torch.device('cpu')):
        assert getattr(settings, name) == allowed
