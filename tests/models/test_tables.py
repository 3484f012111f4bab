"""Tables that are computed once: they serve any size, mode, thread and process, and stay few."""

import copy
import multiprocessing
import pickle
import threading

import pytest
import torch
from called_ops import Called
from conftest import OnMap, make_attention, registered
from mmengine.registry import MODELS
from test_backbones import BACKBONES, build, smallest
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from mmlaplace.models import BaseAttention
from mmlaplace.models.layers import split_windows, tables
from mmlaplace.models.layers.tables import bytes_kept, computed_once, forget_tables

# They have tables of windows and masks, offsets of pairs, rotary positions, places in patches,
# tiles, or waves.
WITH_TABLES = {
    'WindowAttention': dict(window_size=4, shifted=True),
    'CrossShapedAttention': dict(stripe_width=2),
    'RALAAttention': {},
    'SeparableAttention': dict(patch_size=2),
    'NeighborhoodAttention': dict(kernel_size=3),
    'CosformerAttention': {},
    'FaViTAttention': {},
    'ScaledCosineAttention': {},
}
with_tables = pytest.mark.parametrize('name', WITH_TABLES)
SIZES = [(8, 8), (9, 13), (13, 9), (3, 21), (8, 8)]


@pytest.fixture(autouse=True)
def _no_tables():
    forget_tables()
    yield
    forget_tables()


def attention(name):
    return make_attention(name, (8, 8), **WITH_TABLES[name]).float()


def tokens(hw_shape, **options):
    return torch.randn(2, hw_shape[0] * hw_shape[1], 16, **options)


def outputs(model, inputs):
    return [model(x, hw_shape) for x, hw_shape in inputs]


@with_tables
def test_sizes_that_change_get_the_tables_of_their_own(name):
    model, inputs = attention(name), [(tokens(hw_shape), hw_shape) for hw_shape in SIZES]
    expected = []
    for x, hw_shape in inputs:
        forget_tables()
        expected.append(model(x, hw_shape))
    forget_tables()
    for found in (outputs(model, inputs), outputs(model, inputs)):
        assert all(map(torch.equal, found, expected))


@with_tables
def test_tables_of_inference_mode_serve_in_training(name):
    model, x = attention(name), tokens((9, 13))
    fresh = torch.autograd.grad(model(x, (9, 13)).sin().sum(), [*model.parameters()])
    forget_tables()
    with torch.inference_mode():
        model(x, (9, 13))
    found = torch.autograd.grad(model(x, (9, 13)).sin().sum(), [*model.parameters()])
    assert all(map(torch.equal, found, fresh))


@with_tables
def test_threads_get_what_one_thread_gets(name):
    model = attention(name)
    inputs = [(tokens(hw_shape), hw_shape) for hw_shape in SIZES]
    expected, found = outputs(model, inputs), {}
    forget_tables()

    def run(number):
        for _ in range(3):
            found[number] = outputs(model, inputs)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for own in found.values():
        torch.testing.assert_close(own, expected)


@with_tables
def test_a_model_changes_its_dtype_and_its_device(name):
    model, x = attention(name), tokens((9, 13))
    with torch.no_grad():
        first = model(x, (9, 13))
        exact = model.double()(x.double(), (9, 13))
        assert exact.dtype == torch.float64
        half = model.bfloat16()(x.bfloat16(), (9, 13))
        # Of bf16 weights: a few roundings of values around one.
        torch.testing.assert_close(half.double(), exact, atol=0.1, rtol=0.1)
        assert model.to('meta')(x.bfloat16().to('meta'), (9, 13)).is_meta
    torch.testing.assert_close(first.double(), exact, atol=1e-4, rtol=1e-4)  # of fp32


@with_tables
def test_autocast_changes_no_table(name):
    model, x = attention(name), tokens((9, 13))
    expected = model(x, (9, 13))
    forget_tables()
    with torch.autocast('cpu', torch.bfloat16):
        model(x, (9, 13))
    assert torch.equal(model(x, (9, 13)), expected)


def test_a_table_is_computed_in_full_precision_under_autocast():
    def products(size, device):
        numbers = torch.arange(size, dtype=torch.float32, device=device)
        return numbers[:, None] @ numbers[None]

    with torch.autocast('cpu', torch.bfloat16):
        table = computed_once(products, 300, like=torch.zeros(1))
    assert table.dtype == torch.float32 and table[-1, -1] == 299 * 299


@with_tables
def test_tensors_without_values_leave_no_table_behind(name):
    model, x = attention(name), tokens((9, 13))
    for warm in (False, True):
        if warm:
            expected = model(x, (9, 13))
        kept = bytes_kept()
        with FakeTensorMode() as mode:
            sizes = dict(embed_dims=16, num_heads=2, input_resolution=(8, 8))
            fake = MODELS.build(dict(type=name, **sizes, **WITH_TABLES[name]))
            out = fake(mode.from_tensor(x), (9, 13))
        assert isinstance(out, FakeTensor)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model(x, (9, 13))
        copy.deepcopy(model).to('meta')(x.to('meta'), (9, 13))
        assert bytes_kept() == kept
    assert torch.equal(model(x, (9, 13)), expected)


@with_tables
def test_transforms_of_torch_func_need_no_tables_and_leave_none(name):
    model, x = attention(name).eval(), tokens((9, 13))
    out = model(x, (9, 13))
    (slopes,) = torch.autograd.grad(model(x.requires_grad_(), (9, 13)).sin().sum(), x)
    x = x.detach()
    expected = {
        torch.func.vmap(lambda each: model(each[None], (9, 13))[0]): out,
        torch.func.grad(lambda x: model(x, (9, 13)).sin().sum()): slopes,
        torch.func.functionalize(lambda x: model(x, (9, 13))): out,
    }
    for function, value in expected.items():
        torch.testing.assert_close(function(x), value)
        forget_tables()
        torch.testing.assert_close(function(x), value)
        assert bytes_kept() == 0
        assert torch.equal(model(x, (9, 13)), out)


@with_tables
def test_a_trace_computes_its_tables(name):
    model, image = OnMap(attention(name).eval()), torch.randn(2, 16, 9, 13)
    expected = model(image)  # from now on they are there
    trace = torch.jit.trace(model, image, check_trace=False)
    graph = trace.inlined_graph
    constants = [
        node.t('value')
        for node in graph.findAllNodes('prim::Constant')
        if node.hasAttribute('value') and node.kindOf('value') == 't'
    ]
    assert max((tensor.numel() for tensor in constants), default=0) <= 1
    torch.testing.assert_close(trace(image), expected)  # a graph rounds quotients of sizes


@with_tables
def test_a_model_carries_no_table(name):
    model = attention(name)
    before = len(pickle.dumps(model))
    model(tokens((9, 13)), (9, 13))
    assert len(pickle.dumps(model)) == before
    other = copy.deepcopy(model)
    x = tokens((13, 9))
    assert torch.equal(other(x, (13, 9)), model(x, (13, 9)))


@pytest.mark.parametrize('most_bytes, most_tables', [(10_000, 1000), (10**6, 20)])
def test_a_hundred_sizes_fill_no_memory(most_bytes, most_tables, monkeypatch):
    monkeypatch.setattr(tables, 'MOST_BYTES', most_bytes)
    monkeypatch.setattr(tables, 'MOST_TABLES', most_tables)
    for height in range(1, 11):
        for width in range(1, 11):
            x = torch.randn(1, height * width, 4)
            windows = split_windows(x, (height, width), 3, 1)
            forget = split_windows(x, (height, width), 3, 1)
            assert torch.equal(windows, forget)
            assert bytes_kept() <= most_bytes and len(tables._KEPT) <= most_tables
    assert len(tables._KEPT) > 1


def test_a_table_that_is_too_large_leaves_the_others_where_they_are(monkeypatch):
    monkeypatch.setattr(tables, 'MOST_BYTES', 2000)
    split_windows(torch.randn(1, 4 * 4, 4), (4, 4), 2)
    kept, x = bytes_kept(), torch.randn(1, 40 * 40, 4)
    first = split_windows(x, (40, 40), 7, 3)
    assert bytes_kept() == kept > 0
    assert torch.equal(split_windows(x, (40, 40), 7, 3), first)


def test_all_tensors_of_a_table_count():
    def nested(size, device):
        return torch.zeros(size), (torch.zeros(size), None)

    computed_once(nested, 10, like=torch.zeros(1))
    assert bytes_kept() == 2 * 10 * 4


def test_the_least_recently_used_table_goes_first(monkeypatch):
    monkeypatch.setattr(tables, 'MOST_TABLES', 2)
    made, like = [], torch.zeros(1)

    def table(size, device):
        made.append(size)
        return torch.zeros(size, device=device)

    for size in (1, 2, 1, 3, 1, 2):
        computed_once(table, size, like=like)
    assert made == [1, 2, 3, 2]


@pytest.mark.skipif(not hasattr(tables.os, 'fork'), reason='no fork here')
def test_a_forked_worker_does_not_wait_for_a_thread_of_its_parent():
    model, x = attention('WindowAttention'), tokens((9, 13))
    expected, context = model(x, (9, 13)).detach(), multiprocessing.get_context('fork')
    with tables._LOCK:  # as another thread might hold it at the fork
        queue = context.Queue()

        def work():
            torch.set_num_threads(1)
            queue.put(torch.equal(model(x, (9, 13)), expected))

        worker = context.Process(target=work, daemon=True)
        worker.start()
        try:
            assert queue.get(timeout=60)
        finally:
            worker.kill()
            worker.join()


def check_tables(model, *inputs):
    """A second forward makes no positions again, and none changes a table."""
    outs = model.train()(*inputs)
    outs = outs if isinstance(outs, tuple) else (outs,)
    sum(out.square().sum() for out in outs).backward()
    model.eval()(*inputs)
    with Called() as called:
        model(*inputs)
    assert not [op for op in called.ops if op.overloadpacket.__name__ in ('arange', 'linspace')]
    for (compute, sizes, device, *_), (table, _) in [*tables._KEPT.items()]:
        found, fresh = tables._tensors_in(table), tables._tensors_in(compute(*sizes, device))
        assert all(map(torch.equal, found, fresh)), compute
        assert not any(tensor.requires_grad or tensor.is_inference() for tensor in found)


@pytest.mark.parametrize('name', BACKBONES)
def test_blocks_of_a_family_share_tables_and_change_none(name):
    check_tables(build(name, smallest(name)), torch.randn(2, 3, 64, 96))


@pytest.mark.parametrize('name', registered(BaseAttention))
def test_forwards_of_an_attention_share_tables_and_change_none(name):
    for options in ({}, *MODELS.get(name).tested_options):
        sizes = dict(embed_dims=16, num_heads=2, input_resolution=(8, 8))
        attention = MODELS.build(dict(type=name, **sizes, **options))
        check_tables(attention, torch.randn(2, 63, 16), (7, 9))
