"""Export a trained classifier, detector or segmentor to run without this project.

The file takes RGB pixels 'images' (B, 3, H, W), fp32, 0 to 255: it normalises them itself. It gives

  of a classifier   scores (B, classes), probabilities
  of a segmentor    labels (B, H, W), and logits (B, classes, h, w) of the smaller map of the head
  of a detector     boxes (1, n, 4), scores (1, n) and labels (1, n) after NMS, and of Mask R-CNN
                    masks (1, n, 28, 28) of boxes; one image at a time; empty places have scores 0

Formats are 'onnx' (standard operators of opset 18), 'pt2' (torch.export, to be loaded by Python)
and 'aoti' (AOTInductor: compiled for this kind of machine, to be loaded by Python or C++). All have
standard operators by default. With --backend native, pt2 and aoti call the compiled ops of
mmlaplace, and only run where mmlaplace is imported; onnx calls two operators, whose library
build_onnxruntime_ops.py makes. The metadata of the file has its sizes and names, under
'mmlaplace'. docs/deploy.md lists the checks that were made.

Examples:
  python tools/deployment/export.py CONFIG CHECKPOINT --format onnx --dynamic --verify
  python tools/deployment/export.py CONFIG CHECKPOINT --format aoti --image-size 224 224 \\
      --out classifier.aoti.pt2 --verify --benchmark
"""

import argparse
import copy
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Callable, Iterable, List, Tuple

import torch
import torch.nn as nn
from mmengine.config import DictAction

from mmlaplace.analysis.measuring import describe_machine, interleave
from mmlaplace.analysis.networks import image_size
from mmlaplace.commands.command_line import (
    ToolParser,
    load_or_exit,
    positive,
    read_config,
    write_json,
)
from mmlaplace.deployment import exporting, verification
from mmlaplace.deployment.deployable import Deployable, NotDeployableError, deployable
from mmlaplace.model_zoo import build_model

Size = Tuple[int, int]


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
        '--image-size', nargs=2, type=positive, metavar=('H', 'W'),
        help='of the images, or with --dynamic of an example; default: as in the config',
    )  # fmt: skip
    parser.add_argument('--batch-size', type=positive, default=1, help='default: %(default)s')
    parser.add_argument(
        '--dynamic', action='store_true',
        help='images of any number and size; of a model with windows, of any number',
    )  # fmt: skip
    parser.add_argument('--fp16', action='store_true', help='weights and most products in fp16')
    parser.add_argument(
        '--backend', choices=('reference', 'native'), default='reference',
        help="operators of the attentions: PyTorch's (default) or the compiled ones of mmlaplace",
    )  # fmt: skip
    parser.add_argument(
        '--verify', action='store_true', help="compare with the toolbox's predictions for photos"
    )
    parser.add_argument('--benchmark', action='store_true', help='time it beside eager PyTorch')
    parser.add_argument('--rounds', type=positive, default=20, help='of --benchmark; default: 20')
    parser.add_argument(
        '--providers', nargs='+', default=['CPUExecutionProvider'],
        help='of ONNX Runtime, to verify and to time by; default: CPUExecutionProvider',
    )  # fmt: skip
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
    if args.format == 'onnx' and args.backend == 'native' and args.fp16:
        parser.error(
            '--backend native cannot be used with --fp16, because the operators for ONNX Runtime '
            'are in fp32 only'
        )
    return parser, args


def export(form: Deployable, args: argparse.Namespace, size: Size) -> dict:
    """Write the file; returns what it says of itself."""
    if args.fp16:
        form = copy.deepcopy(form)
        form.model.half()
    with exporting.backend_of(args.format, args.backend):
        program = exporting.capture(form, size, args.batch_size, args.dynamic)
    about = exporting.describe(
        form, size, program, config=Path(args.config).stem, format=args.format,
        precision='fp16' if args.fp16 else 'fp32', backend=args.backend,
    )  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    exporting.WRITERS[args.format](program, args.out, about)
    return about


def verify(
    model: nn.Module, form: Deployable, run: Callable, about: dict, sizes: List[Size]
) -> List[dict]:
    """Differences from the toolbox's predictions for each photograph, the largest at each size."""
    found = []
    for size in sizes:
        photos = verification.photographs(size)
        if about['batch'] not in (None, 1):  # a static file of a larger batch: the same image
            photos = [photo.expand(about['batch'], -1, -1, -1).contiguous() for photo in photos]
        rows = []
        for photo in photos:
            expected = verification.predicted(model, form.task, photo[:1])
            outputs = dict(zip(about['outputs'], (out[:1] for out in run(photo))))
            rows.append(verification.differences(form, expected, outputs))
        combined = {
            name: (sum if name in ('expected', 'missing') else largest)(
                row[name] for row in rows if name in row
            )
            for name in dict.fromkeys(name for row in rows for name in row)
        }
        beyond = verification.too_much(combined, about['precision'] == 'fp16')
        found.append(dict(size=list(size), **combined, beyond_tolerance=list(beyond)))
    return found


def largest(values: Iterable[float]) -> float:
    """The largest value, or NaN if there is one."""
    return max(values, key=lambda value: (math.isnan(value), value))


def benchmark(
    form: Deployable, run: Callable, batch: int, sizes: List[Size], rounds: int
) -> List[dict]:
    """Milliseconds in eager PyTorch, with the compiled ops, and in the runtime, by turns."""
    found = []
    for size in sizes:
        images = verification.photographs(size)[0].expand(batch, -1, -1, -1).contiguous()
        jobs = dict(
            pytorch=torch.no_grad()(lambda x=images: form(x)), runtime=lambda x=images: run(x)
        )
        seconds = interleave(jobs, rounds, images.device)
        times = {name: 1e3 * statistics.median(of) for name, of in seconds.items()}
        best = {f'{name}_best': 1e3 * min(of) for name, of in seconds.items()}
        row = dict(times, **best, ratio=times['runtime'] / times['pytorch'])
        found.append(dict(size=list(size), **{name: round(ms, 3) for name, ms in row.items()}))
    return found


def main() -> None:
    parser, args = parse_arguments()
    cfg = read_config(args.config)
    cfg.merge_from_dict(args.cfg_options)
    cfg.model.backbone.init_cfg = None
    size = tuple(args.image_size) if args.image_size else image_size(cfg)
    try:
        exporting.require_packages(*exporting.NEEDED[args.format])
        if args.format == 'onnx' and (args.verify or args.benchmark):
            exporting.require_packages('onnxruntime')
        model = build_model(cfg)
        load_or_exit(model, args.checkpoint, min_matched=1)
        form = deployable(model).eval().requires_grad_(False)
        start = time.perf_counter()
        about = export(form, args, size)
    except (ImportError, NotDeployableError) as error:
        parser.error(str(error))
    report = dict(
        file=str(args.out), about=about, megabytes=round(args.out.stat().st_size / 2**20, 2),
        seconds=round(time.perf_counter() - start, 1),
    )  # fmt: skip
    if args.verify or args.benchmark:
        options = dict(providers=args.providers) if args.format == 'onnx' else {}
        try:
            run, about = exporting.open_exported(args.out, **options)
        except FileNotFoundError as error:
            parser.error(str(error))
        sizes = verification.sizes_to_verify(size, about['multiple'], about['size'] is None)
        if args.verify:
            report['differences'] = verify(model, form, run, about, sizes)
        if args.benchmark:
            batch = about['batch'] or args.batch_size
            report['milliseconds'] = benchmark(form, run, batch, sizes, args.rounds)
            report['machine'] = describe_machine(torch.device('cpu'))
    print(json.dumps(report, indent=2))
    if args.report:
        write_json(args.report, report)
    beyond = [row for row in report.get('differences', ()) if row['beyond_tolerance']]
    if beyond:
        sys.exit(
            f'{args.out} differs from PyTorch at {beyond[0]["size"]} in '
            f'{", ".join(beyond[0]["beyond_tolerance"])}: see above'
        )


if __name__ == '__main__':
    main()
