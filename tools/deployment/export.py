"""Export a trained classifier, detector or segmentor to run without this project.

The file takes RGB pixels 'images' (B, 3, H, W), fp32, 0 to 255: it normalises them itself. A
detector's also takes 'image_sizes' (1, 2), fp32: height and width without the padding. It gives

  of a classifier   scores (B, classes), probabilities
  of a segmentor    labels (B, H, W), and logits (B, classes, h, w) of the smaller map of the head
  of a detector     boxes (1, n, 4), scores (1, n) and labels (1, n) after NMS, and of Mask R-CNN
                    masks (1, n, 28, 28) of boxes; one image at a time; empty places have scores 0

Formats are 'onnx' (standard operators of opset 18), 'openvino' (a file of OpenVINO, and one with
its weights), 'pt2' (torch.export, to be loaded by Python) and 'aoti' (AOTInductor: compiled for
this kind of machine, to be loaded by Python or C++). All have standard operators by default. With
--backend native, pt2 and aoti call the compiled ops of mmlaplace, and only run where mmlaplace is
imported; onnx and openvino call our operators, whose libraries build_onnxruntime_ops.py and
build_openvino_ops.py make. --verify of 'openvino' is in fp32, and again in the precision that
OpenVINO takes by default on this machine. The metadata of the file, under 'mmlaplace', has its
sizes and names, and the steps of the config's test pipeline, by which run_onnx.py prepares images.
With --image-size the file of a classifier or segmentor resizes images to that size instead.
docs/deploy.md lists the checks that were made.

Examples:
  python tools/deployment/export.py CONFIG CHECKPOINT --format onnx --dynamic --verify
  python tools/deployment/export.py CONFIG CHECKPOINT --format aoti --image-size 224 224 \\
      --out classifier.aoti.pt2 --verify --benchmark
"""

import argparse
import copy
import json
import math
import shlex
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import numpy as np
import torch
import torch.nn as nn
from mmengine.config import Config, DictAction
from rich.console import Console
from torch import Tensor

from mmlaplace.analysis.measuring import describe_machine, interleave
from mmlaplace.analysis.networks import image_size
from mmlaplace.commands.command_line import (
    ToolParser,
    load_or_exit,
    positive,
    read_config,
    write_json,
)
from mmlaplace.commands.terminal import command
from mmlaplace.deployment import exporting, image_pipeline, openvino_runtime, verification
from mmlaplace.deployment.deployable import Deployable, NotDeployableError, deployable
from mmlaplace.deployment.inferencers import names_of
from mmlaplace.deployment.onnx_ops import LIBRARY
from mmlaplace.deployment.toolbox_pipeline import (
    check_channels,
    described_pipeline,
    sizes_made,
    with_resize,
)
from mmlaplace.model_zoo import build_model

Size = Tuple[int, int]
MANY = 1000  # masks that the deployed command writes to be compared


def parse_arguments() -> Tuple[ToolParser, argparse.Namespace]:
    parser = ToolParser(__doc__)
    parser.add_trained_model('classifier, detector or segmentor')
    parser.add_argument(
        '--format', choices=tuple(exporting.SUFFIXES), default='onnx', help='default: %(default)s'
    )
    parser.add_output(
        '--out', help='default: work_dirs/deploy/CONFIG with the suffix of the format'
    )
    parser.add_argument(
        '--image-size',
        nargs=2,
        type=positive,
        metavar=('H', 'W'),
        help='of the images, or with --dynamic of an example; default: as the test pipeline makes',
    )
    parser.add_argument('--batch-size', type=positive, default=1, help='default: %(default)s')
    parser.add_argument(
        '--dynamic',
        action='store_true',
        help='images of any number and size; of a model with windows, of any number',
    )
    parser.add_argument('--fp16', action='store_true', help='weights and most products in fp16')
    parser.add_argument(
        '--backend',
        choices=('reference', 'native'),
        default='reference',
        help="operators of the attentions: PyTorch's (default) or the compiled ones of mmlaplace",
    )
    parser.add_argument(
        '--verify',
        action='store_true',
        help="compare graph and deployed command with the toolbox's predictions for photos",
    )
    parser.add_argument('--benchmark', action='store_true', help='time it beside eager PyTorch')
    parser.add_argument('--rounds', type=positive, default=20, help='of --benchmark; default: 20')
    parser.add_argument(
        '--providers',
        nargs='+',
        default=['CPUExecutionProvider'],
        help='of ONNX Runtime, to verify and to time by; default: CPUExecutionProvider',
    )
    parser.add_output('--report', help='write what is printed here too, as JSON')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={})
    args = parser.parse_args()
    suffix = exporting.SUFFIXES[args.format]
    if args.out is None:
        args.out = Path('work_dirs/deploy', Path(args.config).stem + suffix)
        if args.out.exists() and not args.force:
            parser.error(f'{args.out} is there already; --force replaces it')
    if not args.out.name.endswith(suffix):
        parser.error(f'--out must end with {suffix} for --format {args.format}, got {args.out}')
    if args.format in ('onnx', 'openvino') and args.backend == 'native' and args.fp16:
        parser.error(
            '--backend native cannot be used with --fp16, because the operators for ONNX Runtime '
            'and OpenVINO are in fp32 only'
        )
    if args.format == 'onnx' and (args.verify or args.benchmark):
        with parser.refusing(ImportError, ValueError):
            exporting.check_providers(args.providers)
    return parser, args


def planned_size(cfg: Config, form: Deployable, args: argparse.Namespace) -> Tuple[Config, Size]:
    """The config whose test pipeline the file has, and the size of the images of its graph.

    Raises:
        NotDeployableError: If the pipeline cannot be carried out, or gives other channels.
    """
    described = described_pipeline(cfg)
    check_channels(form.channels, described['color'])
    pipeline_sizes = set()
    for sides in sizes_made(described['pipeline']):
        pipeline_sizes.add(tuple(-(-side // form.multiple) * form.multiple for side in sides))
    if not args.image_size:
        return cfg, pipeline_sizes.pop() if len(pipeline_sizes) == 1 else image_size(cfg)
    size = tuple(args.image_size)
    # A detector's images are padded to the size of the file, and windows have a size of their own.
    has_own_sizes = form.task == 'detection' or 'slide' in form.details
    if not args.dynamic and not has_own_sizes and pipeline_sizes != {size}:
        print(
            f'The file will resize images to {size[0]} x {size[1]}, in the place of the steps of '
            'the test pipeline.',
            file=sys.stderr,
        )
        cfg = with_resize(cfg, size)
    return cfg, size


def export(
    form: Deployable,
    cfg: Config,
    args: argparse.Namespace,
    size: Size,
    names: Optional[Dict[str, Any]] = None,
) -> dict:
    """Write the file, with what :func:`names_of` gives; returns what it says of itself."""
    pipeline = described_pipeline(cfg)
    if args.fp16:
        form = copy.deepcopy(form)
        form.model.half()
    with exporting.backend_of(args.format, args.backend):
        program = exporting.capture(form, size, args.batch_size, args.dynamic, tell)
    about = exporting.describe(
        form,
        size,
        program,
        pipeline,
        config=Path(args.config).stem,
        format=args.format,
        precision='fp16' if args.fp16 else 'fp32',
        backend=args.backend,
        **(names or {}),
    )
    tell(f'converting the graph to {args.format} and writing {args.out}')
    exporting.write(args.format, program, args.out, about)
    return about


def tell(sentence: str) -> None:
    """Say on stderr what is done, which takes up to minutes. Stdout is for the report."""
    print(f'{sentence} …', file=sys.stderr, flush=True)


def verify(
    model: nn.Module, form: Deployable, run: Callable, about: dict, sizes: List[Size]
) -> List[dict]:
    """Differences from the toolbox's predictions for each photograph, the largest at each size."""
    report = []
    for size in sizes:
        tell(f"comparing the graph with the toolbox's predictions at {size[0]} x {size[1]}")
        photos = verification.photographs(size, form.channels)
        if about['batch'] not in (None, 1):  # a static file of a larger batch: the same image
            photos = [photo.expand(about['batch'], -1, -1, -1).contiguous() for photo in photos]
        rows = []
        for photo in photos:
            expected = verification.predicted(model, form.task, photo[:1])
            outputs = {
                name: values[:1] for name, values in zip(about['outputs'], run(*form.given(photo)))
            }
            rows.append(verification.differences(form, expected, outputs))
        report.append(dict(size=list(size), **judged(rows, about)))
    return report


def judged(rows: List[dict], about: dict) -> dict:
    """The largest differences of several images, and which are beyond their tolerance."""
    combined = {
        name: (sum if name in ('expected', 'missing', 'extra') else largest)(
            row[name] for row in rows if name in row
        )
        for name in dict.fromkeys(name for row in rows for name in row)
    }
    if about['precision'] == 'bf16':  # in which only numbers that are not finite are an error
        beyond = {name: value for name, value in combined.items() if not math.isfinite(value)}
    else:
        beyond = verification.too_much(combined, about['precision'] == 'fp16')
    return dict(combined, beyond_tolerance=list(beyond))


def verify_deployed(
    cfg: Config, model: nn.Module, run: Callable, about: dict, args: argparse.Namespace
) -> dict:
    """Differences of the deployed command from the toolbox's inferencer, for photographs as files.

    The command of files of ONNX and OpenVINO is run_onnx.py, in a process of its own. Other files
    run here.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = verification.photograph_files(folder, about)
        tell(f"comparing the deployed predictions of {len(paths)} photographs with the toolbox's")
        expected = verification.toolbox_predictions(cfg, model, paths)
        if args.format in ('onnx', 'openvino') and about['batch'] in (None, 1):
            predictions = commanded(args, folder, paths)
        else:

            def batched(x: Tensor, *more: Tensor) -> tuple:
                # A file may take a fixed number of images.
                return run(x.expand(about['batch'] or 1, -1, -1, -1).contiguous(), *more)

            predictions = verification.in_process(batched, about, paths)
    pairs = zip(expected, predictions)
    rows = [verification.prediction_differences(about['task'], *pair) for pair in pairs]
    return dict(images=len(paths), **judged(rows, about))


def commanded(args: argparse.Namespace, folder: Path, paths: List[Path]) -> List[dict]:
    """The predictions that run_onnx.py writes.

    Raises:
        RuntimeError: If it fails; has what it says.
    """
    command = [
        sys.executable,
        str(Path(__file__).with_name('run_onnx.py')),
        str(args.out),
        *map(str, paths),
        '--out',
        str(folder / 'out'),
        '--top',
        str(MANY),
    ]
    if args.format == 'openvino':
        command += ['--precision', 'f32']
    else:
        command += ['--providers', *args.providers]
    if args.backend == 'native' and args.format == 'onnx':
        command += ['--library', str(LIBRARY)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f'{" ".join(command)} failed: {result.stderr.strip()}')
    return [verification.read_predictions(folder / 'out', path.stem) for path in paths]


def default_precision(args: argparse.Namespace) -> str:
    """The precision in which the runtime of the file computes unless it is told otherwise."""
    if args.format != 'openvino':
        return 'f32'
    return openvino_runtime.default_precision(openvino_runtime.core_with())


def largest(values: Iterable[float]) -> float:
    """The largest value, or NaN if there is one."""
    return max(values, key=lambda value: (math.isnan(value), value))


def benchmark(
    form: Deployable, run: Callable, batch: int, sizes: List[Size], rounds: int
) -> List[dict]:
    """Milliseconds in eager PyTorch, with the compiled ops, and in the runtime, by turns."""

    @torch.no_grad()
    def in_torch(*inputs: Tensor) -> tuple:
        return form(*inputs)

    report = []
    for size in sizes:
        tell(f'timing at {size[0]} x {size[1]}')
        photo = verification.photographs(size, form.channels)[0]
        inputs = form.given(photo.expand(batch, -1, -1, -1).contiguous())
        jobs = dict(pytorch=partial(in_torch, *inputs), runtime=partial(run, *inputs))
        seconds = interleave(jobs, rounds, photo.device)
        times = {name: 1e3 * statistics.median(runs) for name, runs in seconds.items()}
        best = {f'{name}_best': 1e3 * min(runs) for name, runs in seconds.items()}
        row = dict(times, **best, ratio=times['runtime'] / times['pytorch'])
        report.append(dict(size=list(size), **{name: round(ms, 3) for name, ms in row.items()}))
    return report


def export_and_verify(parser: ToolParser, args: argparse.Namespace) -> dict:
    """Write the file, and compare and time it if that was asked for; what is reported of it."""
    cfg = read_config(args.config, 'default_scope', 'model.backbone', options=args.cfg_options)
    cfg.model.backbone.init_cfg = None
    # Of FileNotFoundError, for the library of our operators.
    with parser.refusing(FileNotFoundError, ImportError, NotDeployableError):
        exporting.require_packages(*exporting.NEEDED[args.format])
        model = build_model(cfg)
        load_or_exit(model, args.checkpoint, min_matched=1)
        form = deployable(model).eval().requires_grad_(False)
        cfg, size = planned_size(cfg, form, args)
        start = time.perf_counter()
        about = export(form, cfg, args, size, names_of(cfg, args.checkpoint, model))
    shape = (480, 640) if form.channels == 1 else (480, 640, form.channels)
    image = np.zeros(shape, np.uint8)
    try:
        image_pipeline.prepare(image, about)
    except ValueError as error:  # of a size that the pipeline makes
        print(f'The file does not take every image: {error}.', file=sys.stderr)
    report = dict(
        file=str(args.out),
        about=about,
        megabytes=round(args.out.stat().st_size / 2**20, 2),
        seconds=round(time.perf_counter() - start, 1),
    )
    if args.verify or args.benchmark:
        options = dict(providers=args.providers) if args.format == 'onnx' else {}
        with parser.refusing(FileNotFoundError, ValueError):
            run, about = exporting.open_exported(args.out, **options)
        sizes = verification.sizes_to_verify(size, about['multiple'], about['size'] is None)
        if args.verify:
            report['differences'] = verify(model, form, run, about, sizes)
            start = f'{args.out} was written and cannot be verified: '
            with parser.refusing(RuntimeError, ValueError, start=start):
                report['deployed'] = verify_deployed(cfg, model, run, about, args)
            precision = default_precision(args)
            if precision != 'f32':
                run, about = exporting.open_exported(args.out, precision=precision)
                rows = verify(model, form, run, dict(about, precision=precision), sizes[:1])
                report['in_default_precision'] = dict(precision=precision, **rows[0])
        if args.benchmark:
            batch = about['batch'] or args.batch_size
            report['milliseconds'] = benchmark(form, run, batch, sizes, args.rounds)
            report['machine'] = describe_machine(torch.device('cpu'))
    return report


def main() -> None:
    parser, args = parse_arguments()
    # On a terminal alone, and so seldom that timings do not notice.
    with Console(stderr=True).status('this takes up to minutes', refresh_per_second=1):
        report = export_and_verify(parser, args)
    print(json.dumps(report, indent=2))
    if args.report:
        write_json(args.report, report)
    beyond = [row for row in report.get('differences', ()) if row['beyond_tolerance']]
    if beyond:
        sys.exit(
            f'{args.out} differs from PyTorch at {beyond[0]["size"]} in '
            f'{", ".join(beyond[0]["beyond_tolerance"])}: see above'
        )
    if report.get('deployed', {}).get('beyond_tolerance'):
        sys.exit(
            f'{args.out}: the deployed predictions differ from those of the toolbox in '
            f'{", ".join(report["deployed"]["beyond_tolerance"])}: see above'
        )
    unsure = report.get('in_default_precision', {}).get('beyond_tolerance')
    if unsure:
        sys.exit(
            f'{args.out} in {report["in_default_precision"]["precision"]}, which OpenVINO takes by '
            f'default here, gives numbers that are not finite for {", ".join(unsure)}: set '
            'INFERENCE_PRECISION_HINT to f32, or export with --backend native'
        )
    alike = ', which predicts as the toolbox does' if args.verify else ''
    print(f'wrote {args.out} ({report["megabytes"]} MB){alike}', file=sys.stderr)
    if args.format in ('onnx', 'openvino'):
        script = Path(__file__).absolute().with_name('run_onnx.py')
        print(command(script, f'{shlex.quote(str(args.out))} IMAGE'), file=sys.stderr)


if __name__ == '__main__':
    main()
