"""Measure ways to run models on a CPU: PyTorch, ONNX Runtime and OpenVINO. Which is the fastest?

A model is a backbone, named as in benchmark_backbone.py, or HEAD/BACKBONE: a config of
configs/heads with a backbone of mmlaplace, as a whole, from pixels to boxes, masks or a label map.
Weights and images are random; there is one image.

  eager           PyTorch in fp32
  compiled        torch.compile in fp32
  optimized-bf16  mmlaplace.cpu.optimize in bf16
  onnxruntime     a file of fp32, with our operators if build_onnxruntime_ops.py made them
  openvino-f32    a file in fp32, with our operators if build_openvino_ops.py made them
  openvino-bf16   the same file in bf16
  openvino-int8   linears and convolutions in int8 by NNCF, the rest in OpenVINO's default precision

Each model runs at each size in a process of its own, where all ways take turns, and one small model
beside them, whose time shows how even the machine was. A way that fails has the reason in its
place. cosine compares its output with that of eager PyTorch (scores of a detector, logits of a
segmentor, maps of a backbone): ways in which it is small compute something else.

--out has all figures after each model. A call continues where the one before ended: what the file
has is not measured again. To measure a model again, remove its rows.

Examples:
  python tools/benchmarks/benchmark_runtimes.py --out docs/logs/fastest_cpu.json  # hours, alone
  python tools/benchmarks/benchmark_runtimes.py --models laplacianformer-tiny timm:resnet50 \\
      --image-size 224 --ways eager openvino-f32 --out work_dirs/runtimes.json
  python tools/benchmarks/benchmark_runtimes.py --models fpn_4xb4-160k_ade20k-512x512/cswin-tiny
"""

import argparse
import re
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Dict, List, Tuple

import torch

from mmlaplace.analysis.measuring import describe_machine
from mmlaplace.commands.command_line import ToolParser, positive, read_json, write_json
from mmlaplace.lab.side_by_side.runtimes import BASE, WAYS, measure
from mmlaplace.writing import markdown_table

BACKBONES = (
    'efficientvit-b1',
    'efficientvit-b2',
    'ravlt-tiny',
    'ravlt-small',
    'mlla-tiny',
    'cswin-tiny',
    'laplacianformer-tiny',
    'laplacianformer-small',
    'laplacianformer-rows-tiny',
    'laplacianformer-rows-small',
    'polaformer-pvt-tiny',
    'softpp-tiny',
    'pvt-tiny',
    'pvtv2-b1',
    'pvtv2-b2',
    'swin-tiny',
    'mobilevitv2-100',
    'timm:swin_tiny_patch4_window7_224',
    'timm:convnext_tiny',
    'timm:pvt_v2_b1',
    'timm:pvt_v2_b2',
    'timm:resnet50',
    'timm:mobilevitv2_100',
    'timm:efficientvit_b1',
    'timm:efficientvit_b2',
    'timm:cpubone_b0_bfrobust',
    'timm:cpubone_b1_bfrobust',
    'timm:cpubone_b2_bfrobust',
    'timm:cpubone_b3',
)
HEADS = {
    'retinanet_fpn_1x_coco': (800, 1344),
    'mask-rcnn_fpn_1x_coco': (800, 1344),
    'fpn_4xb4-160k_ade20k-512x512': (512, 512),
    'upernet_4xb4-160k_ade20k-512x512': (512, 512),
}
UNDER_HEADS = ('cswin-tiny', 'mlla-tiny', 'laplacianformer-tiny', 'pvtv2-b2')
SIZES = ((224, 224), (512, 512), (1024, 1024))
LEAST_COSINE = 0.95  # to eager PyTorch, of a way that computes the same, int8 among them
PACKAGES = ('onnxruntime', 'openvino', 'nncf', 'timm')


def size_of(text: str) -> Tuple[int, int]:
    """Height and width of ``800x1344``, or of ``224``."""
    match = re.fullmatch(r'([1-9]\d*)(?:x([1-9]\d*))?', text)
    if match is None:
        raise argparse.ArgumentTypeError(f'{text!r}: give HEIGHTxWIDTH such as 800x1344, or SIDE')
    return int(match[1]), int(match[2] or match[1])


def planned(models: List[str], sizes: List[Tuple[int, int]]) -> List[Tuple[str, Tuple[int, int]]]:
    """The models at their sizes, in order."""
    plan = []
    for name in models or [*BACKBONES, *(f'{h}/{b}' for h in HEADS for b in UNDER_HEADS)]:
        head = name.partition('/')[0]
        for size in sizes or ([HEADS[head]] if head in HEADS else SIZES):
            plan.append((name, size))
    return plan


def described(threads: int) -> Dict[str, str]:
    """The machine, and the versions of the runtimes."""
    torch.set_num_threads(threads)
    machine = describe_machine(torch.device('cpu'))
    for name in PACKAGES:
        try:
            machine[name] = version(name)
        except PackageNotFoundError:
            machine[name] = 'missing'
    return machine


def alone(*arguments: Any) -> dict:
    """:func:`measure` in a process of its own, whose end is a failure like any other."""
    with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
        try:
            return pool.submit(measure, *arguments).result()
        except BrokenProcessPool:
            return dict(died='the process ended, as without memory')
        except Exception as error:  # of the model itself, as a size that it does not take
            return dict(failure=f'{type(error).__name__}: {error}')


def measure_missing(log: dict, out: Path, args: argparse.Namespace) -> None:
    """Measure what the log lacks, and write it after each model and size."""
    for name, size in planned(args.models, args.image_size):
        key = f'{name} {size[0]}x{size[1]}'
        row = log['rows'].setdefault(key, dict(model=name, size=list(size), ways={}))
        ways = [way for way in args.ways if way not in row['ways']]
        if not ways or 'failure' in row:
            continue
        found = alone(name, size, ways, args.rounds, args.threads)
        if 'died' in found:  # in one of the ways, which the others need not suffer for
            found = dict(ways={})
            for way in ways:
                one = alone(name, size, [way], args.rounds, args.threads)
                found['ways'].update(one.get('ways', {way: dict(failure=one.get('died'))}))
        row.update(found, ways={**row['ways'], **found.get('ways', {})})
        write_json(out, log)
        print(key, *(f'{way} {cell(row, way)}' for way in ways), sep='  ', flush=True)


def cell(row: dict, way: str) -> str:
    """What a table says of a way."""
    found = row['ways'].get(way, row)
    if 'failure' in found:
        return 'no'
    if 'ms' not in found:
        return 'not run'
    return f'{found["ms"]:.1f}' + (' (wrong)' if found['cosine'] < LEAST_COSINE else '')


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--models', nargs='+', default=[], help='default: those of docs/fastest.md')
    parser.add_argument(
        '--image-size',
        nargs='+',
        type=size_of,
        default=[],
        help='SIDE or HEIGHTxWIDTH; default: 224 512 1024, and of whole models their own',
    )
    parser.add_argument('--ways', nargs='+', choices=tuple(WAYS), default=list(WAYS))
    parser.add_argument('--rounds', type=positive, default=15, help='default: 15')
    parser.add_argument('--threads', type=positive, default=torch.get_num_threads())
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/benchmark_runtimes.json'),
        help='JSON, to which figures are added; default: %(default)s',
    )
    args = parser.parse_args()
    machine = described(args.threads)
    log: Dict[str, Any] = dict(machine=machine, rounds=args.rounds, base=BASE, rows={})
    if args.out.is_file():
        log = read_json(args.out)
        if log.get('machine') != machine:
            parser.error(
                f'{args.out} is of another machine, other threads or other versions: '
                f'{log.get("machine")}, and here {machine}; name another --out'
            )
        if log.get('rounds') != args.rounds:
            parser.error(
                f'{args.out} has --rounds {log.get("rounds")}, got {args.rounds}; name another '
                '--out'
            )
    measure_missing(log, args.out, args)
    rows = [
        [row['model'], '×'.join(map(str, row['size'])), *(cell(row, way) for way in args.ways)]
        for row in log['rows'].values()
    ]
    print(markdown_table(['model', 'size', *(f'{way}, ms' for way in args.ways)], rows))
    print(f'wrote {args.out}')


if __name__ == '__main__':
    main()
