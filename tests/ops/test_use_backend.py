"""The backend of all ops, by a context and by the environment."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mmlaplace.models.layers import TransformerBlock
from mmlaplace.ops import _native, current_backend, laplacian_kernel, use_backend
from mmlaplace.ops.backend import default_backend, only_native, with_current_backend
from mmlaplace.ops.laplacian_kernel import laplacian_kernel_reference

Q, K = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 3, 4)


def chosen(backend='auto'):
    """Who would compute the Laplacian kernel."""
    device = torch.device('cpu')
    op = _native.select('laplacian_kernel', laplacian_kernel_reference, device, backend)
    return 'reference' if op is laplacian_kernel_reference else 'native'


def test_ops_without_a_backend_have_that_of_the_context():
    assert (current_backend(), chosen()) == ('auto', 'native')
    with use_backend('reference'):
        assert (current_backend(), chosen()) == ('reference', 'reference')
        with use_backend('auto'):
            assert chosen() == 'native'
        assert chosen() == 'reference'
    assert (current_backend(), chosen()) == ('auto', 'native')


def test_the_argument_of_an_op_wins():
    with use_backend('reference'):
        assert chosen('native') == 'native'
    with use_backend('native'):
        assert chosen('reference') == 'reference'


def test_of_a_graph_for_a_runtime_certain_ops_alone_are_native():
    with only_native(['laplacian_kernel']):
        assert (current_backend(), chosen()) == ('reference', 'native')
        with only_native(['cholesky_inverse']), use_backend('auto'):
            assert (current_backend(), chosen()) == ('auto', 'native')
        assert chosen('reference') == 'reference'
    with only_native(['cholesky_inverse']):
        assert chosen() == 'reference'
    assert (current_backend(), chosen()) == ('auto', 'native')


def test_an_error_leaves_the_context_too():
    with pytest.raises(ZeroDivisionError), use_backend('reference'):
        raise ZeroDivisionError
    assert current_backend() == 'auto'


def test_a_function_may_be_decorated():
    assert use_backend('reference')(chosen)() == 'reference'
    assert chosen() == 'native'


def test_native_of_the_context_says_why_it_cannot_run(monkeypatch):
    monkeypatch.setattr(_native, 'AVAILABLE', {})
    with use_backend('native'), pytest.raises(RuntimeError, match="no op .*backend='auto'"):
        laplacian_kernel(Q, K, 4.0)


def test_another_name_is_refused_with_the_names_that_there_are():
    with pytest.raises(ValueError, match="one of .*'reference'.*, got 'cuda'"), use_backend('cuda'):
        pass


def test_the_environment_gives_the_default(monkeypatch):
    monkeypatch.setenv('MMLAPLACE_BACKEND', 'reference')
    assert default_backend() == 'reference'
    monkeypatch.setenv('MMLAPLACE_BACKEND', '')
    assert default_backend() == 'auto'
    monkeypatch.setenv('MMLAPLACE_BACKEND', 'gpu')
    with pytest.raises(ValueError, match="MMLAPLACE_BACKEND .*, got 'gpu'; .*unset"):
        default_backend()


@pytest.mark.slow
def test_another_process_reads_the_environment():
    line = 'from mmlaplace.ops import current_backend; print(current_backend())'
    env = {**os.environ, 'MMLAPLACE_BACKEND': 'reference'}
    out = subprocess.run([sys.executable, '-c', line], env=env, capture_output=True, text=True)
    assert out.stdout.split() == ['reference'], out.stderr


def test_every_thread_has_its_own():
    seen, entered, leave = [], threading.Event(), threading.Event()

    def other():
        seen.append(chosen())
        with use_backend('native'):
            entered.set()
            leave.wait(10)
            seen.append(current_backend())

    with use_backend('reference'):
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(10)
        assert chosen() == 'reference'
        leave.set()
        thread.join()
    assert seen == ['native', 'native']


def test_a_function_keeps_the_backend_of_where_it_was_made():
    with use_backend('reference'):
        kept = with_current_backend(chosen)
    assert (kept(), chosen()) == ('reference', 'native')


def test_a_checkpoint_computes_again_with_the_backend_of_the_forward(monkeypatch):
    attn_cfg = dict(
        type='LaplacianAttention', embed_dims=8, num_heads=2, input_resolution=(4, 4),
        num_landmarks=4,
    )  # fmt: skip
    block = TransformerBlock(8, attn_cfg, with_cp=True)
    select, calls = _native.select, []

    def recorded(*args):
        calls.append(select(*args))
        return calls[-1]

    monkeypatch.setattr(_native, 'select', recorded)
    with use_backend('reference'):
        out = block(torch.randn(1, 16, 8), (4, 4))
    forward = len(calls)
    out.sum().backward()
    assert len(calls) > forward > 0
    assert not any(isinstance(call, torch._ops.OpOverload) for call in calls)


class Chosen(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return chosen()


@pytest.mark.slow
def test_a_forked_worker_has_the_backend_of_its_parent():
    with use_backend('reference'):
        loader = DataLoader(Chosen(), num_workers=1, multiprocessing_context='fork')
        assert [batch[0] for batch in loader] == ['reference'] * 2


@pytest.mark.slow
def test_graphs_are_compiled_again_for_another_backend():
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    kernel = torch.compile(
        lambda q, k: laplacian_kernel(q, k, 4.0), backend=backend, fullgraph=True
    )
    kernel(Q, K)
    with use_backend('reference'):
        kernel(Q, K)
    kernel(Q, K)
    assert ['mmlaplace' in code for code in graphs] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize('strict', [False, True])
def test_an_exported_graph_has_the_backend_of_its_export(strict):
    class Kernel(torch.nn.Module):
        def forward(self, q, k):
            return laplacian_kernel(q, k, 4.0)

    native = torch.export.export(Kernel(), (Q, K), strict=strict)
    with use_backend('reference'):
        plain = torch.export.export(Kernel(), (Q, K), strict=strict)
    assert 'mmlaplace' in native.graph_module.code
    assert 'mmlaplace' not in plain.graph_module.code
