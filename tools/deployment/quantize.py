"""Quantise the linears and convolutions of a classifier's file to int8, and measure it.

Activations get their ranges from training images of the config: in an ONNX file by the static
quantisation of ONNX Runtime, and in a file of OpenVINO by NNCF, which pip install
"mmlaplace[int8]" brings. Weights are quantised by channel. Kernels, inverses, normalisers, products
of two activations and our operators stay in fp32. Then both files classify the config's test
images, and are timed by turns.

Examples:
  python tools/deployment/quantize.py classifier.xml CONFIG --out classifier.int8.xml
  python tools/deployment/quantize.py classifier.onnx CONFIG --out classifier.int8.onnx
"""

import json
import statistics
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Callable, Iterator, List, Tuple

import torch
from mmengine.config import Config, DictAction
from mmengine.registry import DATASETS, DefaultScope
from rich.console import Console
from torch import Tensor

from mmlaplace.analysis.measuring import describe_machine, interleave
from mmlaplace.commands.command_line import ToolParser, positive, read_config, write_json
from mmlaplace.commands.refusals import first_checks
from mmlaplace.deployment import exporting, image_pipeline, openvino_runtime
from mmlaplace.deployment.int8 import in_int8, quantize_onnx, require_nncf


def images_of(cfg: Config, about: dict, split: str, count: int) -> Iterator[Tuple[Tensor, int]]:
    """Evenly spread images of a config's data as the file takes them, with their labels.

    All go through the pipeline for testing, so without augmentation.
    """
    dataset_cfg = dict(cfg[f'{split}_dataloader'].dataset)
    dataset_cfg['pipeline'] = cfg.test_dataloader.dataset.pipeline
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        dataset = DATASETS.build(dataset_cfg)
    count = min(count, len(dataset)) if count else len(dataset)
    for index in (len(dataset) * place // count for place in range(count)):
        data = dataset[index]
        pixels = image_pipeline.turned(data['inputs'].permute(1, 2, 0).float().numpy())
        pixels = image_pipeline.padded(pixels, about, pixels.shape[:2])
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous()
        yield image, int(data['data_samples'].gt_label)


def quantize(source: Path, out: Path, images: List[Tensor]) -> None:
    """Write the int8 file, with the metadata of the other.

    Raises:
        ImportError: If NNCF is not installed, for a file of OpenVINO.
    """
    if source.suffix == '.onnx':
        return quantize_onnx(source, out, images)
    model = openvino_runtime.read_model(source, openvino_runtime.core_with())
    about = json.loads(openvino_runtime.facts_of(model) or '{}')
    exporting.save_openvino(in_int8(model, images), out, dict(about, precision='int8'))


def megabytes(path: Path) -> float:
    """Of a file, with the weights that OpenVINO has beside it."""
    parts = [path] if path.suffix == '.onnx' else [path, path.with_suffix('.bin')]
    return round(sum(part.stat().st_size for part in parts) / 2**20, 2)


def top1(run: Callable, images: List[Tuple[Tensor, int]]) -> float:
    """Percent of the images whose highest score is that of their label."""
    right = sum(int(run(image)[0].argmax()) == label for image, label in images)
    return 100 * right / len(images)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('model', type=Path, help='of export.py --format onnx or openvino')
    parser.add_argument('config', help='of the same classifier, for its data')
    parser.add_output('--out', required=True, help='the int8 file')
    parser.add_argument('--calibration', type=positive, default=64, help='images; default: 64')
    parser.add_argument('--test', type=int, default=0, help='images; default: all')
    parser.add_argument('--max-loss', type=float, default=1.0, help='of top-1, in points')
    parser.add_argument('--rounds', type=positive, default=20, help='default: %(default)s')
    parser.add_output('--report', help='write what is printed here too, as JSON')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={})
    args = parser.parse_args()
    if args.model.suffix not in ('.onnx', '.xml'):
        parser.error(f'the model must end with .onnx or .xml, got {args.model}')
    if args.out.suffix != args.model.suffix:
        parser.error(f'--out must end with {args.model.suffix} as the model does, got {args.out}')
    with parser.refusing(ImportError):
        if args.model.suffix == '.onnx':
            exporting.require_packages('onnx', 'onnxruntime')
        else:
            openvino_runtime.require_openvino()
            require_nncf()
    if args.out.resolve() == args.model.resolve():
        parser.error(f'--out {args.out} is the model itself; name another file')
    cfg = read_config(
        args.config,
        'default_scope',
        'train_dataloader.dataset',
        'test_dataloader.dataset',
        options=args.cfg_options,
    )
    import_module(f'{cfg.default_scope}.utils').register_all_modules(init_default_scope=False)
    with parser.refusing(FileNotFoundError, ValueError):
        before, about = exporting.open_exported(args.model)
        image_pipeline.facts(json.dumps(about), args.model)
    if about['task'] != 'classification' or about['precision'] != 'fp32':
        parser.error(
            f'the model must be a classifier in fp32, but {args.model} is for {about["task"]} in '
            f'{about["precision"]}'
        )
    if about.get('backend') == 'native' and args.model.suffix == '.onnx':
        parser.error(
            f'{args.model} calls operators of mmlaplace, which ONNX Runtime cannot '
            'quantise; export it with --backend reference, or with --format openvino'
        )
    # On a terminal alone, and so seldom that timings do not notice.
    with Console(stderr=True).status('quantising, testing and timing', refresh_per_second=1):
        with parser.refusing(ValueError), first_checks(cfg, ('train', 'test')):
            calibration = [image for image, _ in images_of(cfg, about, 'train', args.calibration)]
            images = list(images_of(cfg, about, 'test', args.test))
        quantize(args.model, args.out, calibration)
        after, _ = exporting.open_exported(args.out)
        files, runs = dict(fp32=args.model, int8=args.out), dict(fp32=before, int8=after)
        jobs = {name: partial(run, images[0][0]) for name, run in runs.items()}
        seconds = interleave(jobs, args.rounds, torch.device('cpu'))
        report = dict(
            images=len(images),
            top1={name: round(top1(run, images), 2) for name, run in runs.items()},
            milliseconds={
                name: round(1e3 * statistics.median(of), 3) for name, of in seconds.items()
            },
            megabytes={name: megabytes(path) for name, path in files.items()},
            machine=describe_machine(torch.device('cpu')),
        )
    print(json.dumps(report, indent=2))
    if args.report:
        write_json(args.report, report)
    loss = report['top1']['fp32'] - report['top1']['int8']
    if loss > args.max_loss:
        sys.exit(
            f'{args.out} loses {loss:.2f} points of top-1, more than --max-loss {args.max_loss}'
        )


if __name__ == '__main__':
    main()
