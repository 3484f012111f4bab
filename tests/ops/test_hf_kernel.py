"""The package for Hugging Face's ``kernels`` computes as mmlaplace does, and beside it."""

import json
import re
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from called_ops import Called
from conftest import ROOT, load_tool, needs_torch
from test_tracing import all_ops

from mmlaplace import ops as ours
from mmlaplace.ops._sources import library_sources

kernels = pytest.importorskip('kernels')
pytestmark = needs_torch(2, 10)
tool = load_tool('.dev_scripts/make_hf_kernel.py')


def make(*arguments):
    with mock.patch.object(sys, 'argv', ['make_hf_kernel.py', *map(str, arguments)]):
        tool.main()


@pytest.fixture(scope='module')
def kernel(tmp_path_factory):
    folder = tmp_path_factory.mktemp('kernel')
    make(folder / 'mmlaplace-ops')
    return kernels.get_local_kernel(folder / 'mmlaplace-ops', backend='cpu')


def results(ops, backend='native'):
    """All ops together, and their gradients."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 2, n, 4, generator=generator, requires_grad=True) for n in (9, 6))
    with ops.use_backend(backend):
        out = all_ops(q, k, ops)
    return [out, *torch.autograd.grad(out.square().sum(), (q, k))]


def test_a_kernel_needs_torch_alone(kernel):
    known = {'torch', *sys.stdlib_module_names}
    for path in Path(kernel.__file__).parent.rglob('*.py'):
        named = re.findall(r'^ *(?:from|import) (\w+)', path.read_text(), re.MULTILINE)
        assert set(named) <= known, path


def test_results_and_gradients_are_those_of_mmlaplace(kernel):
    assert kernel.__all__ == ours.__all__
    with Called() as called:
        found = results(kernel)
    (namespace,) = called.namespaces - {'aten'}
    assert namespace.startswith('_mmlaplace_ops_c')
    for value, same, reference in zip(found, results(ours), results(ours, 'reference')):
        assert torch.equal(value, same)
        torch.testing.assert_close(value, reference, rtol=1e-3, atol=1e-4)  # fp32, an inverse


CUDA = b'mmlaplace built for cuda=13.0;mmlaplace built for arches=800,900;'


@pytest.mark.parametrize(
    ('start', 'end', 'name', 'backend'),
    [
        (b'', CUDA, r'cu130-\w+-\w+', {'type': 'cuda', 'archs': ['8.0', '9.0+PTX']}),
        (b'\xcf\xfa\xed\xfe', b'', 'cpu-(x86_64|aarch64)-darwin', {'type': 'cpu'}),  # Mach-O
    ],
)
def test_a_library_becomes_a_variant_for_its_cuda_or_system(tmp_path, start, end, name, backend):
    library = tmp_path / '_C.abi3.so'
    library.write_bytes(start + (ROOT / tool.LIBRARY).read_bytes()[len(start) :] + end)
    make(tmp_path / 'new', library)
    (written,) = (tmp_path / 'new/build').glob('*/metadata.json')
    assert re.fullmatch(f'torch-stable-abi210-{name}', written.parent.name)
    assert json.loads(written.read_text())['backend'] == backend


def test_kernel_builder_finds_all_sources_and_what_they_include(kernel):
    tomllib = pytest.importorskip('tomllib', reason='Python 3.11 has it')
    folder = Path(kernel.__file__).parents[2]
    build = tomllib.loads((folder / 'build.toml').read_text())
    cpu, cuda = (build['kernel'][f'ops_{name}'] for name in ('cpu', 'cuda'))
    # Of kernel-builder, and for the runtimes alone.
    others = {'registration.h', '../../onnxruntime/host.h', '../../openvino/host.h'}
    compiled = {path.relative_to(ROOT).as_posix() for path in library_sources(ROOT / 'ops')}
    assert {*cuda['src']} == compiled - {'ops/common/build_info.cpp'}  # the binding has it
    assert {*cpu['src']} == {path for path in cuda['src'] if not path.endswith('.cu')}
    for source in {*build['torch']['src'], *cuda['src']}:
        for name in re.findall('^#include "(.*)"', (folder / source).read_text(), re.MULTILINE):
            near = (folder / source).parent.joinpath(name).resolve()
            assert name in others or near.relative_to(folder).as_posix() in cuda['src'], source
    assert {p.name for p in (folder / 'torch-ext/mmlaplace_ops').iterdir()} == {
        '__init__.py',
        'ops',
    }


def test_what_is_no_library_or_no_package_gets_one_sentence(tmp_path):
    (tmp_path / 'mine.txt').touch()
    other = tmp_path / '_C.abi3.so'
    other.write_bytes(b'\0mmlaplace built for torch=2.1;\0')
    for arguments, message in (
        ([tmp_path], 'is not empty and no kernel package; give the name of a new folder'),
        ([tmp_path / 'new', tmp_path / 'no.so'], r'no library in .*no\.so; .* makes it'),
        ([tmp_path / 'new', other], 'no library that serves torch 2.10 and later; compile'),
    ):
        with pytest.raises(SystemExit, match=message):
            make(*arguments)
