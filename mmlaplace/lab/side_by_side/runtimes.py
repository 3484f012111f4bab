"""Ways to run a model on a CPU, from eager PyTorch to int8 in OpenVINO, timed by turns.

A model is a backbone, by a name of :mod:`.backbone_candidates`, or HEAD/BACKBONE, which is a config
of ``configs/heads`` with a backbone: the whole model, from pixels to boxes, masks or a label map.
"""

import math
import os
import statistics
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
import torch.nn as nn
from mmengine.config import Config
from torch import Tensor

from mmlaplace.analysis.measuring import interleave, model_job, tensors_of
from mmlaplace.commands.random_images import random_model
from mmlaplace.cpu import optimize
from mmlaplace.deployment import exporting, onnx_ops, openvino_runtime
from mmlaplace.deployment.deployable import deployable
from mmlaplace.deployment.int8 import in_int8
from mmlaplace.model_zoo import files_root

from .backbone_candidates import find

Size = Tuple[int, int]  # height and width
Job = Callable[[], Tuple[Tensor, ...]]

CPU = torch.device('cpu')
BUDGET = 20.0  # seconds for the runs of a way, of which there are at least 3
BASE, BASE_SIZE = 'pvt-tiny', (224, 224)  # timed with each model: how even the machine was


class Timed(nn.Module):
    """A model as all ways run it, from the tensors ``given`` to a tuple of tensors."""

    def __init__(self, model: nn.Module, given: Tuple[Tensor, ...], inputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.given = given
        self.inputs = inputs

    def forward(self, *given: Tensor) -> Tuple[Tensor, ...]:
        return tensors_of(self.model(*given))


def timed(name: str, size: Size) -> Timed:
    """A model with random weights, and a random image of a size.

    Raises:
        ValueError: For an unknown name, or a whole model that cannot be exported.
        ImportError: If the model's package is not installed.
    """
    torch.manual_seed(0)
    head, slash, backbone = name.partition('/')
    if slash and not name.endswith('.py'):
        path = files_root() / f'configs/heads/{head}.py'
        if not path.is_file():
            raise ValueError(f'{name!r}: there is no config {path}; see docs/heads.md')
        os.environ['BACKBONE'] = backbone
        cfg = Config.fromfile(path)
        for part in (cfg.model.get('test_cfg', {}), cfg.model.get('test_cfg', {}).get('rcnn', {})):
            if 'score_thr' in part:
                part.score_thr = 0.0  # random weights are certain of nothing
        form = deployable(random_model(cfg))
        return Timed(form, form.given(255 * torch.rand(1, form.channels, *size)), form.inputs)
    # A model of timm with shifted windows is built for one size.
    options = dict(img_size=size) if name.startswith('timm:swin') else {}
    return Timed(find(name)(train=False, **options), (torch.randn(1, 3, *size),), ['images'])


class Files:
    """The files of a model, with our operators where their library is there."""

    def __init__(self, model: Timed, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.native: Dict[Path, bool] = {}

    def onnx(self, library: Path) -> Path:
        """An ONNX file, for the runtime that this library of our operators is for."""
        backend = 'native' if library.exists() else 'reference'
        path = self.folder / f'{backend}.onnx'
        if path not in self.native:
            with exporting.backend_of('onnx', backend), torch.no_grad():
                program = torch.export.export(self.model, self.model.given, strict=False)
                count = len(self.model(*self.model.given))
            names = dict(inputs=self.model.inputs, outputs=[f'out_{i}' for i in range(count)])
            exporting.write_onnx(program, path, dict(names, backend=backend))
            self.native[path] = any(
                node.domain == onnx_ops.DOMAIN for node in _onnx().load(str(path)).graph.node
            )
        return path


def _onnx() -> Any:
    import onnx

    return onnx


def eager(model: Timed, files: Files) -> Job:
    return partial(torch.no_grad()(model), *model.given)


def compiled(model: Timed, files: Files) -> Job:
    return partial(torch.no_grad()(torch.compile(model, dynamic=False)), *model.given)


def optimized(model: Timed, files: Files) -> Job:
    changed = optimize(model.model, torch.bfloat16)
    run = Timed(changed, model.given, model.inputs)
    if len(model.given) > 1:  # a detector, whose boxes are fp32

        @torch.no_grad()
        def under_autocast() -> Tuple[Tensor, ...]:
            with torch.autocast('cpu', torch.bfloat16):
                return run(*model.given)

        return under_autocast
    return model_job(run, model.given[0], train=False, dtype=torch.bfloat16)


def onnxruntime(model: Timed, files: Files) -> Job:
    run, _ = exporting.open_onnx(files.onnx(onnx_ops.LIBRARY))
    return partial(run, *model.given)


def openvino(precision: str, int8: bool, model: Timed, files: Files) -> Job:
    core = openvino_runtime.core_with()
    graph = openvino_runtime.read_model(files.onnx(openvino_runtime.library_path()), core)
    if int8:
        image, *others = model.given
        # Of the same distribution as the image.
        graph = in_int8(graph, [image.roll(shift, 3).contiguous() for shift in range(8)], others)
    threads = torch.get_num_threads()
    run = openvino_runtime.runner(openvino_runtime.compiled(core, graph, precision, threads))
    arrays = [one.numpy() for one in model.given]
    return lambda: tuple(torch.from_numpy(out) for out in run(*arrays))


WAYS: Dict[str, Callable[[Timed, Files], Job]] = {
    'eager': eager,
    'compiled': compiled,
    'optimized-bf16': optimized,
    'onnxruntime': onnxruntime,
    'openvino-f32': partial(openvino, 'f32', False),
    'openvino-bf16': partial(openvino, 'bf16', False),
    'openvino-int8': partial(openvino, 'default', True),
}


def measure(name: str, size: Size, ways: Sequence[str], rounds: int, threads: int) -> dict:
    """Time the ways of a model by turns.

    Returns:
        ``ways``: for each of them its ``ms`` (median), ``min_ms``, ``runs``, ``base_ms`` of
        ``BASE`` in eager mode beside it, ``cosine`` of its output to that of eager PyTorch (scores
        of a detector, logits of a segmentor), and whether a file has ``our_operators``; or the
        ``failure``.
    """
    torch.set_num_threads(threads)
    model = timed(name, size)
    expected = eager(model, Files(model, Path()))()
    found: Dict[str, dict] = {}
    jobs: Dict[Any, Job] = {}
    with TemporaryDirectory() as folder:
        files = Files(model, Path(folder))
        for way in ways:
            try:
                job = WAYS[way](model, files)
                out = job()  # compiled in this call
            except Exception as error:  # of any runtime
                found[way] = dict(failure=_first_line(error))
                continue
            jobs[way] = job
            # Of a detector the scores: random boxes of nearly equal scores may change places. Of a
            # segmentor the logits.
            found[way] = dict(cosine=_cosine(out[:2][-1], expected[:2][-1]))
            if way.startswith('openvino'):
                path = files.onnx(openvino_runtime.library_path())
                found[way]['our_operators'] = files.native[path]
            elif way == 'onnxruntime':
                found[way]['our_operators'] = files.native[files.onnx(onnx_ops.LIBRARY)]
        base = timed(BASE, BASE_SIZE)
        jobs[BASE] = eager(base, files)
        seconds = interleave(jobs, rounds, CPU, BUDGET)
    for way in found.keys() & seconds.keys():
        runs: List[float] = seconds[way]
        found[way].update(
            ms=round(1e3 * statistics.median(runs), 3),
            min_ms=round(1e3 * min(runs), 3),
            runs=len(runs),
            base_ms=round(1e3 * statistics.median(seconds[BASE]), 3),
        )
    return dict(ways=found)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ['']
    return f'{type(error).__name__}: {lines[0][:300]}'


def _cosine(found: Tensor, expected: Tensor) -> float:
    """The cosine of two outputs; 0 if one has other sizes or numbers that are not finite."""
    if found.shape != expected.shape:
        return 0.0
    if torch.equal(found, expected):  # also zeros, which have no cosine
        return 1.0
    cosine = torch.cosine_similarity(found.flatten().double(), expected.flatten().double(), 0)
    return round(cosine.item(), 6) if math.isfinite(cosine.item()) else 0.0
