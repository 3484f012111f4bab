"""Export models with random weights, for the table of docs/deploy.md.

A log in docs/logs/deploy is the report of tools/deployment/export.py on a model. From these
make_pages.py makes the table. Rows with our operators need the library that
tools/deployment/build_onnxruntime_ops.py makes.

Examples:
  python .dev_scripts/measure_exports.py '*'  # half an hour
  python .dev_scripts/measure_exports.py 'mask-rcnn*'
"""

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from mmengine.config import Config
from pages.files import ROOT

from mmlaplace.commands.command_line import ToolParser, read_json, write_json
from mmlaplace.deployment.exporting import SUFFIXES
from mmlaplace.model_zoo import build_model

LOGS = ROOT / 'docs/logs/deploy'
# Scaled up, as random ones find all classes alike. A detector's would give scores that round to 1.
HEADS = ('conv_seg', 'head.fc')


class Row(NamedTuple):
    name: str
    config: str
    format: str = 'onnx'
    side: int = 0  # of the only images that a file takes; 0: any
    native: bool = False

    @property
    def log(self) -> Path:
        size = f'{self.side}x{self.side}' if self.side else 'dynamic'
        return LOGS / f'{Path(self.config).name}_{self.format}_{size}{"_native" * self.native}.json'


CLASSIFIERS = [
    ('LaplacianFormer-tiny', 'classification/laplacianformer/laplacianformer-tiny_8xb128_in1k'),
    ('SOFT++-tiny', 'classification/soft/softpp-tiny_8xb128_in1k'),
    ('PolaFormer-PVT-tiny', 'classification/polaformer/polaformer-pvt-tiny_8xb128_in1k'),
    ('PolaFormer-Swin-tiny', 'classification/polaformer/polaformer-swin-tiny_8xb128_in1k'),
]
DETECTION, SEGMENTATION = 'detection/laplacianformer', 'segmentation/laplacianformer'
SIZES = ((512, False), (224, True), (512, True))
ROWS = [
    *(Row(*model, kind) for model in CLASSIFIERS for kind in ('onnx', 'pt2', 'aoti')),
    *(Row(*model, 'onnx', *size) for model in CLASSIFIERS[:2] for size in SIZES),
    *(Row(*model, 'onnx', 512) for model in CLASSIFIERS[2:]),
    Row('RetinaNet, micro', f'{DETECTION}/retinanet_laplacianformer-micro_fpn_mini'),
    Row('Mask R-CNN, micro', f'{DETECTION}/mask-rcnn_laplacianformer-micro_fpn_mini'),
    Row('UPerNet, micro', f'{SEGMENTATION}/laplacianformer-micro_upernet_1xb16_mini'),
    Row('Semantic FPN, micro', f'{SEGMENTATION}/laplacianformer-micro_fpn_1xb16_mini'),
]


def random_checkpoint(row: Row, folder: str) -> Path:
    """Random weights of a model, in a file that rows of the same config share."""
    path = Path(folder, Path(row.config).name + '.pth')
    if not path.exists():
        torch.manual_seed(0)
        cfg = Config.fromfile(ROOT / 'configs' / f'{row.config}.py')
        cfg.model.backbone.init_cfg = None
        model = build_model(cfg)
        with torch.no_grad():
            for name, part in model.named_modules():
                if name.endswith(HEADS):
                    part.weight *= 10
        torch.save(dict(state_dict=model.state_dict()), path)
    return path


def measure(row: Row, folder: str) -> None:
    """Run the tool, whose report stays; one that failed leaves the reason."""
    out = Path(folder, 'model' + SUFFIXES[row.format])
    row.log.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        ROOT / 'tools/deployment/export.py',
        f'configs/{row.config}.py',
        random_checkpoint(row, folder),
        '--format',
        row.format,
        '--out',
        out,
        '--force',
        '--report',
        row.log,
        '--verify',
        '--benchmark',
        *(['--image-size', row.side, row.side] if row.side else ['--dynamic']),
        *(['--backend', 'native'] if row.native else []),
    ]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
    if result.returncode and 'differs from PyTorch' not in result.stderr:
        lines = result.stderr.strip().splitlines() or [f'status {result.returncode}']
        write_json(row.log, dict(refused=lines[-1]))
    elif row.log.is_file():
        write_json(row.log, dict(read_json(row.log), file=out.name))


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('pattern', help='of the names of the logs')
    args = parser.parse_args()
    rows = [row for row in ROWS if fnmatch(row.log.stem, args.pattern)]
    if not rows:
        parser.error(f'no log matches {args.pattern!r}; they are {[r.log.stem for r in ROWS]}')
    with TemporaryDirectory() as folder:
        for row in rows:
            measure(row, folder)
            print(f'wrote {row.log.relative_to(ROOT)}', flush=True)


if __name__ == '__main__':
    main()
