import collections
import contextlib
import functools
import gc
import importlib.util
import io
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import mmengine
import numpy as np
import pytest
import scheduling
import torch
from filelock import FileLock
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image

import mmlaplace.__main__
import mmlaplace.models
from mmlaplace.lab.mini_datasets import pictures
from mmlaplace.model_zoo import build_model as toolbox_model  # noqa: F401  (for tests)
from mmlaplace.ops import _native

ROOT = Path(__file__).resolve().parent.parent
CLASSIFICATION = ROOT / 'configs/classification'
MICRO = {
    'laplacianformer': 'classification/laplacianformer/laplacianformer-micro_1xb32_mini',
    'polaformer-pvt': 'classification/polaformer/polaformer-pvt-micro_1xb32_mini',
    'polaformer-swin': 'classification/polaformer/polaformer-swin-micro_1xb32_mini',
    'softpp': 'classification/soft/softpp-micro_1xb32_mini',
    'retinanet': 'detection/laplacianformer/retinanet_laplacianformer-micro_fpn_mini',
    'mask-rcnn': 'detection/laplacianformer/mask-rcnn_laplacianformer-micro_fpn_mini',
    'upernet': 'segmentation/laplacianformer/laplacianformer-micro_upernet_1xb16_mini',
    'semantic-fpn': 'segmentation/laplacianformer/laplacianformer-micro_fpn_1xb16_mini',
}


def micro_config(name: str) -> Path:
    """The config of a small model."""
    return ROOT / 'configs' / f'{MICRO[name]}.py'


def registered(base: type) -> list:
    """Names of the concrete classes of ours in the registry that extend ``base``."""
    return sorted(
        name
        for name, cls in MODELS.module_dict.items()
        if cls.__module__.startswith('mmlaplace.') and issubclass(cls, base)
    )


def by_threads(function, numbers=(1, 1, 2, 3)) -> list:
    """What ``function()`` gives with each number of threads."""
    before, found = torch.get_num_threads(), []
    try:
        for number in numbers:
            torch.set_num_threads(number)
            found.append(function())
    finally:
        torch.set_num_threads(before)
    return found


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def full_disk():
    """A context in which nothing can be written to any file, as by a limit of zero bytes."""

    @contextlib.contextmanager
    def limited():
        resource = pytest.importorskip('resource')
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited()


def marks_of_case(number: int, every: int, slow: int = 6) -> list:
    """Of many cases every so many is fast, every sixth or so slow, and the others are thorough."""
    if number % every == 0:
        return []
    return [pytest.mark.thorough if number % slow else pytest.mark.slow]


def pytest_configure():
    # mmengine writes a config and its bases to temporary files before it reads them. In memory that
    # takes a third of the time. Large files of tests, in their tmp_path, stay on the disk.
    memory = Path('/dev/shm')
    if memory.is_dir() and shutil.disk_usage(memory).free > ROOM and 'TMPDIR' not in os.environ:
        os.environ.setdefault('PYTEST_DEBUG_TEMPROOT', tempfile.gettempdir())
        os.environ['TMPDIR'] = tempfile.tempdir = str(memory)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    return scheduling.GoingOn(config, log) if config.option.dist == 'loadgroup' else None


ROOM = 2**31  # bytes: of several processes each compiles graphs, whose files are temporary too
MANY = 8  # cases of a test, of which all but every eighth are slow: --fast leaves them out
LONG = ('sanitizer', 'build', 'training', 'docs', 'wheel')


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items):
    cases, of_test = collections.Counter(), collections.Counter(item.function for item in items)
    for item in items:
        sampled = item.get_closest_marker('sampled')
        number, many = cases[item.function], of_test[item.function] > MANY
        cases[item.function] += 1
        for mark in marks_of_case(number, *sampled.args) if sampled else ():
            item.add_marker(mark)
        if many and number % MANY and not sampled:
            item.add_marker('slow')
        reasons = [mark.kwargs.get('reason') for mark in item.iter_markers('skipif')]
        if NO_GPU.kwargs['reason'] in reasons:
            item.add_marker('gpu')
        if {'mini_data', 'exported'} & {*item.fixturenames}:  # which take half a minute to make
            item.add_marker('slow')
        # Made once, where one of several processes has all tests that take it.
        for shared in ('wheel', 'exported', 'quick_starts'):
            if shared in item.fixturenames:
                item.add_marker(pytest.mark.xdist_group(shared))
    # The longest start first, so that no process waits in the end for one that began late.
    items.sort(key=lambda item: not any(map(item.get_closest_marker, LONG)))


def pytest_collection_finish():
    # Thousands of tests and the libraries stay to the end: no collection need go through them.
    gc.collect()
    gc.freeze()


def fewer_pictures():
    """A context in which the mini data sets have a few of their images, each made as always."""
    scenes = {
        task: (size, {'train': 120, 'val': 60}, digits)
        for task, (size, _, digits) in pictures.SCENES.items()
    }
    once = {'train': 1, 'val': 1}
    return mock.patch.multiple(pictures, SCENES=scenes, BACKGROUNDS_PER_DIGIT=once)


@pytest.fixture(scope='session')
def mini_data(tmp_path_factory, pytestconfig) -> Path:
    """All three mini data sets, made once, also where several processes run the tests."""
    everybodys = tmp_path_factory.getbasetemp()
    if hasattr(pytestconfig, 'workerinput'):  # one process of several: theirs is one level up
        everybodys = everybodys.parent
    out, made = everybodys / 'mini', everybodys / 'mini.made'
    with FileLock(everybodys / 'mini.lock'):
        if not made.exists():
            with fewer_pictures():
                output_of(ROOT / 'tools/dataset_converters/make_mini_datasets.py', '--out', out)
            made.touch()
    return out


class OnMap(torch.nn.Module):
    """An attention as a model of maps ``(B, C, H, W)``: every pixel is a token."""

    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.attention(image.flatten(2).transpose(1, 2), tuple(image.shape[2:]))


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function, *args) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple:
        return self.call


def load_tool(path: str) -> types.ModuleType:
    """A script as a module, such as ``load_tool('tools/benchmarks/benchmark_ops.py')``."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where pickle looks for its functions
    with mock.patch.object(sys, 'path', [str((ROOT / path).parent), *sys.path]):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def imports_forgotten(folder: Path):
    """Modules of a folder, and the classes that they register, are not there afterwards.

    Another test may import a file of the same name from a folder of its own.
    """
    modules, classes = set(sys.modules), set(MODELS.module_dict)
    yield
    for module in set(sys.modules) - modules:
        file = getattr(sys.modules[module], '__file__', None)
        if file is not None and Path(file).is_relative_to(folder.resolve()):
            del sys.modules[module]
    for name in set(MODELS.module_dict) - classes:
        module = MODELS.module_dict[name].__module__
        if module == '__main__' or module not in sys.modules:
            del MODELS.module_dict[name]
    importlib.invalidate_caches()


def run_script(script, *arguments) -> subprocess.CompletedProcess:
    """Run a script in this process, which has imported already what takes seconds to import.

    ``'mmlaplace'`` in place of a path is ``python -m mmlaplace``.
    """
    words = [str(argument) for argument in arguments]
    if script == 'mmlaplace':
        return _run_here(lambda: sys.exit(mmlaplace.__main__.main(words)), script, *words)
    with mock.patch.object(sys, 'path', [str(Path(script).parent), *sys.path]):
        return _run_here(lambda: runpy.run_path(str(script), run_name='__main__'), script, *words)


def run_module(name: str, *arguments) -> subprocess.CompletedProcess:
    """Run ``python -m name`` in this process, as above."""
    return _run_here(lambda: runpy.run_module(name, run_name='__main__'), name, *arguments)


def _run_here(start, *words) -> subprocess.CompletedProcess:
    command = [str(word) for word in words]
    said, complained = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, 'argv', command),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
    ):
        try:
            start()
            status = 0
        except SystemExit as end:
            status = end.code or 0
    if isinstance(status, str):  # as Python does with a message
        status, _ = 1, complained.write(status)
    return subprocess.CompletedProcess(command, status, said.getvalue(), complained.getvalue())


def output_of(script, *arguments) -> str:
    """What a script prints that succeeds."""
    result = run_script(script, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refusal_of(script, *arguments) -> str:
    """The sentence with which a script refuses its arguments."""
    result = run_script(script, *arguments)
    assert result.returncode == 2, result.stdout + result.stderr
    return result.stderr


def run_python(*arguments, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess:
    """Run a Python of its own, such as ``run_python('-c', 'import mmlaplace')``."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, **env}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)


@pytest.fixture
def noise_images():
    """Write a folder of images of noise, two of each class."""

    def write(folder: Path, side: int, classes: int = 2) -> None:
        noise = np.random.default_rng(0)
        for label in range(classes):
            (folder / f'{label:02d}').mkdir(parents=True)
            for number in range(2):
                pixels = noise.integers(0, 255, (side, side, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f'{label:02d}/{number}.png')

    return write


@pytest.fixture
def fashion_files():
    """Write the files of a Fashion-MNIST that has 40 images of noise in either part."""

    def write(folder: Path) -> Path:
        folder.mkdir(parents=True)
        noise = np.random.default_rng(0)
        for part in ('train', 't10k'):
            images = noise.integers(0, 255, (40, 28, 28), np.uint8)
            for kind, array in (('images', images), ('labels', np.arange(40, dtype=np.uint8) % 10)):
                head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, '>i4').tobytes()
                path = folder / f'{part}-{kind}-idx{array.ndim}-ubyte'
                path.write_bytes(head + array.tobytes())
        return folder

    return write


def toolbox_config(path: Path) -> Config:
    """A config whose toolbox has registered its modules."""
    cfg = Config.fromfile(path)
    utils = importlib.import_module(f'{cfg.default_scope}.utils')
    utils.register_all_modules(init_default_scope=False)
    return cfg


def quiet_init(model: torch.nn.Module) -> None:
    """Initialise the weights without a log line per parameter."""
    logger = mmengine.logging.MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel('ERROR')
    # The record that those lines are written from takes longer than all else.
    with (
        mock.patch('mmengine.model.base_module.update_init_info'),
        mock.patch('mmengine.model.weight_init.update_init_info'),
    ):
        model.init_weights()
    logger.setLevel(level)


def fast_with(names, *fast) -> list:
    """The values of a parameter, of which all but ``fast`` are for the whole suite."""
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


def needs_torch(major: int, minor: int):
    """A mark for what earlier versions of torch lack."""
    version = tuple(map(int, torch.__version__.split('.')[:2]))
    return pytest.mark.skipif(version < (major, minor), reason=f'needs torch {major}.{minor}')


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU here')
# Where compiled code takes and gives zeros for subnormal numbers.
ON_X86 = pytest.mark.skipif(
    _native.WHY_MISSING is not None or _native.this_machine() != 'x86_64',
    reason='needs the compiled library on an x86 processor',
)


@pytest.fixture(
    params=[
        pytest.param((backend, device), id=f'{backend}-{device}', marks=marks)
        for device, marks in (('cpu', ()), ('cuda', NO_GPU))
        for backend in ('native', 'reference')
    ]
)
def backend(request):
    """Which code computes; ``device`` is where."""
    backend, device = request.param
    if backend == 'native' and _native.WHY_MISSING is not None:
        # The suite is for installations that compiled their ops: set-up does wherever it can.
        pytest.fail(f'the native ops cannot be tested: {_native.WHY_MISSING}')
    return backend


@pytest.fixture
def device(backend, request):
    return request.node.callspec.params['backend'][1]


@pytest.fixture
def computed_by(backend):
    """An op with the backend chosen."""
    return lambda op: functools.partial(op, backend=backend)


def make_attention(kind, hw_shape=(4, 4), std=None, init=True, **options):
    """An attention in fp64 by its name or class; ``std`` spreads every parameter."""
    sizes = dict(embed_dims=16, num_heads=2, input_resolution=hw_shape)
    attention = MODELS.build(dict(sizes, type=kind) | options)
    if init:
        quiet_init(attention)
    for parameter in attention.parameters() if std else ():  # nothing hides at its first value
        torch.nn.init.normal_(parameter, std=std)
    return attention.double().eval()


def split_heads(x, count=2):
    """``(B, N, C)`` as ``(B, heads, N, C / heads)``."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64)
