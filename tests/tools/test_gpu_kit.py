"""The scripts for a GPU run on a CPU too, in small sizes, so that none is broken on the day."""

import json
import re
import shlex
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import ROOT, imports_forgotten, load_tool, output_of, run_script
from test_scripts import run
from torch import nn

from mmlaplace import ops
from mmlaplace.ops.backend import current_backend
from mmlaplace.ops.table import OPS

KIT = ROOT / '.dev_scripts/gpu'
RUNS = ('run1.sh', 'run2.sh', 'run3.sh')
LIMIT = 470  # seconds of a run
# What a rehearsal of each script leaves to the thorough one: what takes seconds.
LESS = {
    'checks.py': [
        *('--only', '*_* as*', '*_* wait*', '*_* CUDA*', '*_* det*', '*_* side*', '*_* auto*'),
        *('*2^31*', 'laplacianformer-micro [awCd]*'),
    ],
    'measure_peers.py': [
        *('--parts', 'attentions', 'backbones'),
        *('--models', 'laplacianformer-micro', 'timm:test_resnet'),
    ],
}
# Writes down what it is called with, and fails or hangs where a test wants that.
PYTHON = """#!/bin/bash
printf '%q ' "TENSOR_CORES=${MMLAPLACE_TENSOR_CORES:-}" "$@" >>"$CALLS"
echo >>"$CALLS"
case "$*" in
    *"${FAILS:-nothing}"*) echo 'a line before the end'; exit 3 ;;
    *"${HANGS:-nothing}"*) sleep 60 ;;
esac
"""


@pytest.fixture
def rehearsing(monkeypatch):
    """Scripts read REHEARSE once. What they set for the process is undone."""
    monkeypatch.setenv('REHEARSE', '1')
    monkeypatch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    monkeypatch.setattr(torch.backends.cudnn, 'allow_tf32', torch.backends.cudnn.allow_tf32)
    with imports_forgotten(KIT):
        yield


@pytest.fixture
def start(tmp_path):
    """Start a run with a Python that writes its calls down; gives the process and the calls."""
    python, calls = tmp_path / 'python', tmp_path / 'calls'
    python.write_text(PYTHON)
    python.chmod(0o755)

    def start(script, *arguments, **env):
        calls.write_text('')
        env = dict(REHEARSE='1', PATIENCE='1', OUT=str(tmp_path / 'out'), **env)
        result = run('bash', script, *arguments, PYTHON=str(python), CALLS=str(calls), **env)
        return result, [shlex.split(line) for line in calls.read_text().splitlines()]

    return start


def less(script, arguments) -> list:
    """Arguments with those of LESS in the place of the same options."""
    name = script.rpartition('/')[2]
    if name == 'profile_models.py':
        return ['laplacianformer-micro']
    shorter = LESS.get(name, [])
    options = [word for word in shorter if word.startswith('--')]
    kept, skipping = [], False
    for word in arguments:
        if word.startswith('--'):
            skipping = word in options
        if not skipping:
            kept.append(word)
    return [*kept, *shorter]


@pytest.mark.parametrize('script', RUNS)
def test_each_script_of_a_run_works_with_its_arguments(script, start, rehearsing):
    result, calls = start(KIT / script)
    assert result.returncode == 0, result.stdout + result.stderr
    done = 0
    for call in calls:
        _, script, *arguments = call
        if not script.startswith('.dev_scripts/gpu'):
            continue
        said = output_of(ROOT / script, *less(script, arguments))
        assert 'FAIL' not in said
        if '--out' in arguments:
            out = arguments[arguments.index('--out') + 1]
            found = json.loads(Path(out).read_text())
            assert found['rows'] and not found['not_reached'] and found['rehearsal']
        done += 1
    assert done >= 1


@pytest.mark.parametrize('script', RUNS)
def test_a_run_has_its_time_and_names_files_and_tests_that_are_there(script, start):
    result, calls = start(KIT / script)
    limits = [int(limit) for limit in re.findall(r'^== \w+, at most (\d+) s', result.stdout, re.M)]
    assert len(limits) == len(calls) >= 3 and sum(limits) <= LIMIT
    for limit, (_, *words) in zip(limits, calls):
        assert all((ROOT / word).exists() for word in words if word.startswith(('tests/', '.dev')))
        if '-m' in words[2:]:
            assert words[words.index('-m', 2) + 1] == 'gpu'
        if '--seconds' in words:  # a script ends by itself, with its figures, before it is stopped
            assert int(words[words.index('--seconds') + 1]) + 15 <= limit


def test_the_third_run_asks_for_tensor_cores_where_it_says_so(start):
    result, calls = start(KIT / 'run3.sh')
    names = re.findall(r'^== (\w+), at most', result.stdout, re.M)
    assert len(names) == len(calls)
    asked = {name for name, call in zip(names, calls) if call[0] == 'TENSOR_CORES=1'}
    assert asked == {name for name in names if name.endswith('tensor_cores')} and len(asked) == 3


def test_a_step_that_fails_or_hangs_keeps_no_other_from_running(start, tmp_path):
    result, calls = start(KIT / 'run2.sh', FAILS='measure_peers', HANGS='nobody')
    assert result.returncode == 1 and len(calls) == 3
    assert 'a line before the end' in result.stdout and 'peers: FAILED' in result.stdout
    assert 'these steps failed: peers; read their logs in' in result.stderr
    assert (tmp_path / 'out/peers.txt').read_text() == 'a line before the end\n'
    steps = (
        f'source {KIT}/steps.sh; step slow 1 sleep 30; step quick 9 echo done; '
        'show=kept step some 9 printf "kept\\nleft out\\n"; end_of_steps'
    )
    result = run('bash', '-c', steps, REHEARSE='1', PATIENCE='1', OUT=str(tmp_path))
    assert 'slow: STOPPED after 1 s' in result.stdout and 'quick: done' in result.stdout
    assert '\nkept\n' in result.stdout and '\nleft out\n' not in result.stdout
    assert result.returncode == 1 and 'these steps failed: slow;' in result.stderr


def test_patience_gives_scripts_and_their_steps_more_time(tmp_path):
    steps = f'source {KIT}/steps.sh; seconds 20; step quick 9 true; end_of_steps'
    said = run('bash', '-c', steps, REHEARSE='1', PATIENCE='3', OUT=str(tmp_path)).stdout
    assert said.startswith('60\n== quick, at most 27 s: true\n') and 'all steps passed' in said


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU here')
def test_without_a_gpu_a_run_says_so(tmp_path):
    result = run('bash', KIT / 'run1.sh', OUT=str(tmp_path), REHEARSE='', PYTHON=sys.executable)
    assert result.returncode == 1 and not result.stdout
    assert re.search('torch .* sees no GPU; nvidia-smi must list one.*REHEARSE=1', result.stderr)


def test_a_user_with_a_card_runs_the_same(start, tmp_path):
    result, calls = start(ROOT / 'tools/gpu_check.sh', tmp_path / 'out', FAILS='call_ops')
    of_runs = [call for script in RUNS for call in start(KIT / script)[1]]
    named = [[word for word in call if '/out' not in word] for call in calls]
    for call in of_runs:
        assert [word for word in call if '/out' not in word] in named
    assert {'benchmark_ops.py', 'benchmark_backbone.py'} <= {
        word.rpartition('/')[2] for call in calls[len(of_runs) :] for word in call
    }
    assert result.returncode == 1 and 'these steps failed: run3;' in result.stderr


def test_a_new_op_is_checked_and_measured_by_itself(rehearsing, monkeypatch, tmp_path):
    seen = []

    def newest_attention(q, k, v, backend='auto', **options):
        seen.append((q.dtype, q.requires_grad, backend))
        return ops.linear_attention(q, k, v, backend=backend, **options)

    monkeypatch.setitem(OPS, 'newest_attention', OPS['linear_attention']._replace(by_reference=''))
    monkeypatch.setattr(ops, 'newest_attention', newest_attention, raising=False)
    out = ('--out', tmp_path / 'out.json', '--force')
    output_of(KIT / 'checks.py', '--only', 'newest_attention [!o]*', *out)
    checks = [row['check'] for row in json.loads((tmp_path / 'out.json').read_text())['rows']]
    assert len(checks) == 7 and 'newest_attention as on the CPU' in checks
    seen.clear()
    output_of(KIT / 'measure_ops.py', *out)
    assert set(seen) == {
        (dtype, train, backend)
        for dtype in (torch.float32, torch.bfloat16)
        for train in (False, True)
        for backend in ('native', 'reference')
    }
    rows = json.loads((tmp_path / 'out.json').read_text())['rows']
    assert {row['op'] for row in rows} >= set(OPS)
    newest = [row for row in rows if row['op'] == 'newest_attention']
    kinds = {(row['dtype'], row['pass'], row['candidate']) for row in newest}
    assert len(kinds) == len(newest) == 8 and all(row['ms'] > 0 for row in newest)
    said = output_of(KIT / 'call_ops.py', '--ops', 'newest_attention')
    assert 'newest_attention, bf16: (1, 2, 49, 32)' in said


class Wrong:
    """An op whose results on a GPU would be wrong in one way."""

    def __init__(self, fault) -> None:
        self.fault, self.calls, self.first = fault, 0, None

    def __call__(self, q, k, bandwidth, backend='auto'):
        self.calls += 1
        out = ops.laplacian_kernel(q, k, bandwidth, backend=backend)
        if self.fault == 'value' and backend == 'native':
            return out + 1e-6
        if self.fault == 'gradient' and backend == 'native':
            return out + 1e-6 * (q.sum() - q.sum().detach())
        if self.fault == 'random':
            return out * (1 + 1e-3 * self.calls)
        if self.fault == 'old numbers':  # in the replay, the fourth call, those of the capture
            self.first = out.clone() if self.calls == 1 else self.first
            return self.first if self.calls == 4 else out
        if self.fault == 'autocast' and torch.is_autocast_enabled('cpu'):
            return out.bfloat16().float()
        if self.fault == 'infinite' and torch.is_autocast_enabled('cpu'):
            return out / 0
        return out


@pytest.mark.parametrize(
    ('fault', 'check', 'reason'),
    [
        ('', '', ''),
        ('value', 'as on the CPU', 'relative errors'),
        ('gradient', 'as on the CPU', 'relative errors'),
        ('random', 'deterministic', '3 of 3 tensors have other bits'),
        ('random', 'side stream', 'another result'),
        ('old numbers', 'CUDA graph', 'relative error'),
        ('autocast', 'autocast', 'relative errors'),
        ('infinite', 'autocast', 'not finite'),
    ],
)
def test_checks_find_a_fault_of_an_op(fault, check, reason, rehearsing, monkeypatch, tmp_path):
    monkeypatch.setitem(OPS, 'wrong', OPS['laplacian_kernel'])
    monkeypatch.setattr(ops, 'wrong', Wrong(fault), raising=False)
    names = f'wrong {check or "[!o]"}*'
    result = run_script(KIT / 'checks.py', '--only', names, '--out', tmp_path / 'out.json')
    assert result.returncode == bool(fault), result.stdout
    assert bool(fault) == bool(re.search(rf'\[FAIL\] wrong {check}: .*{reason}', result.stdout))
    rows = json.loads((tmp_path / 'out.json').read_text())['rows']
    assert bool(fault) == any(reason in row.get('failure', '') for row in rows if fault)


class WrongModel(nn.Conv2d):
    """A backbone that would be wrong in one way."""

    def __init__(self, fault) -> None:
        super().__init__(3, 4, 3)
        self.fault, self.calls = fault, 0

    def forward(self, images):
        self.calls += 1
        out = super().forward(images)
        if self.fault == 'on a GPU' and self.calls == 2:  # after the call on the CPU
            out = out * 1.001
        if self.fault == 'random':
            out = out * torch.rand(())
        if self.fault == 'infinite' and torch.is_autocast_enabled('cpu'):
            out = out / 0
        return out


@pytest.mark.parametrize(
    ('fault', 'check', 'reason'),
    [
        ('on a GPU', 'model_is_as_on_the_cpu', 'of 3 tensors'),
        ('random', 'model_in_a_graph', 'relative error'),
        ('random', 'model_is_deterministic', '3 of 3 tensors have other bits'),
        ('infinite', 'model_under_autocast', 'not finite in torch.float16'),
    ],
)
def test_checks_find_a_fault_of_a_model(fault, check, reason, rehearsing, monkeypatch):
    checks = load_tool('.dev_scripts/gpu/checks.py')
    monkeypatch.setattr(checks, 'backbone', lambda name, train=False: WrongModel(''))
    assert getattr(checks, check)('right')
    monkeypatch.setattr(checks, 'backbone', lambda name, train=False: WrongModel(fault))
    with pytest.raises(AssertionError, match=reason):
        getattr(checks, check)('wrong')


def test_waiting_is_an_error_in_the_check_for_it(rehearsing, tmp_path, monkeypatch):
    kit = load_tool('.dev_scripts/gpu/kit.py')
    assert kit.DEVICE.type == 'cpu'
    monkeypatch.setattr(kit, 'DEVICE', torch.device('cuda'))
    with mock.patch.object(torch.cuda, 'set_sync_debug_mode', autospec=True) as mode:
        with pytest.raises(RuntimeError, match='waited'), kit.no_waiting():
            assert mode.call_args == mock.call('error')
            raise RuntimeError('waited')
        assert mode.call_args == mock.call('default')


def test_graphs_and_streams_are_torchs(rehearsing, monkeypatch):
    """What no CPU has is called with the arguments that torch takes."""
    kit = load_tool('.dev_scripts/gpu/kit.py')
    monkeypatch.setattr(kit, 'DEVICE', torch.device('cuda'))
    calls = []
    names = ('graph', 'stream', 'current_stream', 'synchronize', '_sleep', 'empty_cache')
    with (
        mock.patch.multiple(
            torch.cuda, **{name: mock.create_autospec(getattr(torch.cuda, name)) for name in names}
        ),
        mock.patch.multiple(torch.cuda, Stream=mock.MagicMock(), CUDAGraph=mock.MagicMock()),
    ):
        torch.cuda.graph.return_value = mock.MagicMock()
        replay, result = kit.captured(lambda: calls.append('run') or 'result')
        assert result == 'result' and len(calls) == 4  # three before the capture
        assert replay is torch.cuda.CUDAGraph().replay
        assert kit.on_side_stream(lambda: calls.append('run') or 'side') == 'side'
        torch.cuda.Stream().synchronize.assert_called_once()
        kit.wait()
        kit.give_memory_back()
        torch.cuda.empty_cache.assert_called_once()


def test_what_fails_is_named_and_too_large_is_no_fault(rehearsing, tmp_path, monkeypatch):
    kit = load_tool('.dev_scripts/gpu/kit.py')

    def fail(error):
        raise error

    jobs = {
        'good': lambda: (torch.zeros(1),),
        'large': lambda: fail(torch.cuda.OutOfMemoryError('out of memory')),
        'broken': lambda: fail(RuntimeError('no such kernel\nand more')),
    }
    times, failures = kit.times_of(jobs)
    assert list(times) == ['good'] and times['good'] > 0
    assert failures['large'].too_large and not failures['broken'].too_large
    assert failures['broken'].text == 'RuntimeError: no such kernel'
    report = kit.Report(tmp_path / 'out.json')
    assert report.status() == 1  # nothing was measured
    report.add('large', failure='out of memory', too_large=True)
    assert report.status() == 0
    report.add('broken', failure='no such kernel', too_large=False)
    assert report.status() == 1
    report.leave_out('the last')
    assert json.loads((tmp_path / 'out.json').read_text())['not_reached'] == ['the last']
    monkeypatch.setattr(kit, 'REHEARSAL', False)
    assert kit.Budget(-1).is_over() and not kit.Budget(100).is_over()


def test_a_burst_is_divided_by_its_runs(rehearsing, monkeypatch):
    kit = load_tool('.dev_scripts/gpu/kit.py')
    runs = []
    monkeypatch.setattr(kit, 'seconds_of', lambda job, device: (job(), 1e-3 * len(runs))[1])
    assert kit.seconds_in_a_row(lambda: runs.append(1), kit.DEVICE) == pytest.approx(6e-3 / 5)
    runs.extend([1] * 10)
    assert kit.seconds_in_a_row(lambda: runs.append(1), kit.DEVICE) == pytest.approx(17e-3)


def test_jobs_of_attentions_have_backend_dtype_and_gradients_as_their_row_says(rehearsing):
    peers = load_tool('.dev_scripts/gpu/measure_peers.py')
    seen = []

    def mix(q, k, v):
        halves = torch.is_autocast_enabled('cpu')
        seen.append((current_backend(), q.requires_grad, halves, q.dtype))
        return q + k + v

    for backend in ('native', 'reference'):
        for dtype in (torch.float32, torch.bfloat16):
            for train in (False, True):
                tensors = tuple(torch.randn(1, 2, 4, 8, dtype=dtype) for _ in range(3))
                mixing = peers.Mixing(mix, backend)
                results = peers.attention_job(mixing, tensors, dtype, train)()
                assert seen.pop() == (backend, train, dtype == torch.bfloat16, dtype)
                assert len(results) == (4 if train else 1)
    mixings = peers.attentions(7, 16)
    assert {name.rpartition(', ')[2]: mixing.backend for name, mixing in mixings.items()} == dict(
        fused='native', plain='reference', SDPA='auto', Triton='auto'
    )
    tensors = [torch.randn(1, 2, 49, 16) for _ in range(3)]
    for name in peers.OURS:
        results = []
        for form in peers.FORMS:
            torch.manual_seed(0)  # PolaAttention draws its powers
            mixing = peers.attentions(7, 16)[f'{name}, {form}']
            results.append(peers.attention_job(mixing, tuple(tensors), torch.float32, False)()[0])
        assert results[0].shape == (1, 2, 49, 16)
        torch.testing.assert_close(*results)  # one function by two ways, in fp32


def test_jobs_of_backbones_have_the_mode_that_their_row_says(rehearsing, monkeypatch, tmp_path):
    peers = load_tool('.dev_scripts/gpu/measure_peers.py')
    built, seen = [], []

    class Model(nn.Linear):
        def forward(self, images):
            halves = torch.is_autocast_enabled('cpu')
            seen.append((self.training, torch.is_grad_enabled(), halves, tuple(images.shape)))
            return super().forward(images)

    def find(name):
        return lambda train, **options: built.append((name, train, options)) or Model(5, 5)

    monkeypatch.setattr(peers, 'find', find)
    report = peers.Report(tmp_path / 'out.json')
    for name in ('timm:swin_tiny_patch4_window7_224', 'mlla-tiny'):
        peers.measure_backbone(name, 5, 2, report)
        sized = dict(img_size=5) if name.startswith('timm') else {}
        assert built == [(name, False, sized), (name, True, sized)]
        modes = list(dict.fromkeys(seen))
        assert modes == [
            (train, train, halves, (2, 3, 5, 5))
            for train, halves in ((False, False), (False, True), (True, True))
        ]
        built.clear(), seen.clear()
    assert [row['mode'] for row in report.rows[:3]] == ['fp32', 'bf16', 'bf16 training']


def test_inverses_check_nothing_as_the_host_would_wait_for_it(rehearsing):
    kit = load_tool('.dev_scripts/gpu/kit.py')
    for name in ('cholesky_inverse', 'newton_schulz_inverse'):
        row, tensors = kit.large_example(name, 2, 3, 4, 9, 8, torch.float32)
        assert tensors['mat'].shape == (2, 3, 9, 9)
        assert kit.function_of(name, row)(tensors['mat'] / 0).isnan().any()


def test_large_examples_have_the_sizes_that_are_asked_for(rehearsing):
    kit = load_tool('.dev_scripts/gpu/kit.py')
    sizes = (2, 3, 6, 9, 16)  # images, heads, side, landmarks and channels
    for name in OPS:
        row, tensors = kit.large_example(name, *sizes, torch.bfloat16)
        for key, tensor in tensors.items():
            assert tensor.shape[:2] == (2, 3), (name, key)
            assert tensor.shape[2:] in ((36, 16), (9, 16), (9, 9)), (name, key)
            assert tensor.dtype == (torch.bfloat16 if key in 'qkv' else torch.float32)
        out = kit.function_of(name, row)(**tensors)
        assert out.shape[:2] == (2, 3)
        if name == 'pooled_landmarks':
            assert out.shape == (2, 3, 9, 16)
        assert (kit.macs_of(row, tensors) > 0) == (row.macs is not None)
    row, tensors = kit.large_example('laplacian_kernel', *sizes, torch.float32)
    assert kit.macs_of(row, tensors) == 2 * 3 * 36 * 9 * 16
    wide = {key: tensor.double() for key, tensor in tensors.items()}
    found = kit.gradients(kit.function_of('laplacian_kernel', row), wide)
    leaves = {key: tensor.requires_grad_() for key, tensor in wide.items()}
    out = ops.laplacian_kernel(**leaves, bandwidth=4.0)
    truth = (out, *torch.autograd.grad(out.square().sum(), list(leaves.values())))
    torch.testing.assert_close(found, truth, rtol=1e-12, atol=1e-15)  # fp64 throughout


@pytest.mark.thorough
def test_a_user_with_a_card_gets_through(tmp_path):
    command = ('bash', ROOT / 'tools/gpu_check.sh', tmp_path)
    result = run(*command, REHEARSE='1', WORKERS='1', PYTHON=sys.executable)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr
    assert 'all steps passed' in result.stdout
