"""Write the table of exported models in docs/deploy.md from its logs, or make the logs.

A log in docs/logs/deploy is the report of tools/deployment/export.py on a model with random
weights. Rows with our operators need the library that tools/deployment/build_onnxruntime_ops.py
makes.

Examples:
  python .dev_scripts/make_deploy_table.py
  python .dev_scripts/make_deploy_table.py --run '*'           # all logs first; half an hour
  python .dev_scripts/make_deploy_table.py --run 'mask-rcnn*'
"""

import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import List, NamedTuple

import torch
from marked_tables import ROOT, markdown_table, parser_of_pages, with_tables, write_pages
from mmengine.config import Config

from mmlaplace.commands.command_line import read_json, write_json
from mmlaplace.deployment.exporting import SUFFIXES
from mmlaplace.model_zoo import build_model

LOGS, PAGE = ROOT / 'docs/logs/deploy', ROOT / 'docs/deploy.md'
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
        parts = [Path(self.config).name, self.format]
        parts.append(f'{self.side}x{self.side}' if self.side else 'dynamic')
        if self.native:
            parts.append('native')
        return LOGS / f'{"_".join(parts)}.json'


LAPLACIANFORMER = (
    'LaplacianFormer-tiny',
    'classification/laplacianformer/laplacianformer-tiny_8xb128_in1k',
)
SOFTPP = ('SOFT++-tiny', 'classification/soft/softpp-tiny_8xb128_in1k')
POLA_PVT = (
    'PolaFormer-PVT-tiny',
    'classification/polaformer/polaformer-pvt-tiny_8xb128_in1k',
)
POLA_SWIN = (
    'PolaFormer-Swin-tiny',
    'classification/polaformer/polaformer-swin-tiny_8xb128_in1k',
)
DETECTION, SEGMENTATION = 'detection/laplacianformer', 'segmentation/laplacianformer'
ROWS = [
    Row(*LAPLACIANFORMER, 'onnx'),
    Row(*LAPLACIANFORMER, 'pt2'),
    Row(*LAPLACIANFORMER, 'aoti'),
    Row(*SOFTPP, 'onnx'),
    Row(*SOFTPP, 'pt2'),
    Row(*SOFTPP, 'aoti'),
    Row(*POLA_PVT, 'onnx'),
    Row(*POLA_PVT, 'pt2'),
    Row(*POLA_PVT, 'aoti'),
    Row(*POLA_SWIN, 'onnx'),
    Row(*POLA_SWIN, 'pt2'),
    Row(*POLA_SWIN, 'aoti'),
    Row(*LAPLACIANFORMER, 'onnx', 512),
    Row(*LAPLACIANFORMER, 'onnx', 224, native=True),
    Row(*LAPLACIANFORMER, 'onnx', 512, native=True),
    Row(*SOFTPP, 'onnx', 512),
    Row(*SOFTPP, 'onnx', 224, native=True),
    Row(*SOFTPP, 'onnx', 512, native=True),
    Row(*POLA_PVT, 'onnx', 512),
    Row(*POLA_SWIN, 'onnx', 512),
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
    ]
    if row.side:
        command += ['--image-size', row.side, row.side]
    else:
        command.append('--dynamic')
    if row.native:
        command += ['--backend', 'native']
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
    if result.returncode and 'differs from PyTorch' not in result.stderr:
        lines = result.stderr.strip().splitlines() or [f'status {result.returncode}']
        write_json(row.log, dict(refused=lines[-1]))
    elif row.log.is_file():
        write_json(row.log, dict(read_json(row.log), file=out.name))


def cells(row: Row) -> List[str]:
    """What the table says of a row."""
    task = row.config.split('/')[0]
    kind = f'{row.format}, our operators' if row.native else row.format
    if not row.log.is_file():
        return [row.name, task, kind, 'not run', '', '', '', '', '']
    report = read_json(row.log)
    if 'refused' in report:
        return [row.name, task, kind, 'no', report['refused'], '', '', '', '']
    rows = report['differences']
    sizes = ', '.join('×'.join(map(str, one['size'])) for one in rows)
    largest = []
    for name in ('scores', 'logits', 'boxes', 'labels', 'masks', 'missing'):
        values = [one[name] for one in rows if name in one]
        if values:
            largest.append(f'{name} {max(values):.1g}')
    checked = 'no' if any(one['beyond_tolerance'] for one in rows) else 'yes'
    if 'expected' in rows[0]:
        checked += f', {sum(one["expected"] for one in rows)} boxes'
    times = report['milliseconds'][0]
    return [
        row.name,
        task,
        kind,
        sizes,
        checked,
        ', '.join(largest),
        f'{times["pytorch"]:.1f}',
        f'{times["runtime"]:.1f}',
        f'{times["ratio"]:.2f}',
    ]


def main() -> None:
    parser = parser_of_pages(__doc__)
    parser.add_argument('--run', default='', help='make the logs whose names match this pattern')
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        for row in ROWS:
            if fnmatch(row.log.stem, args.run):
                measure(row, folder)
                print(' | '.join(cells(row)), flush=True)
    heads = [
        'model',
        'task',
        'format',
        'sizes',
        'as PyTorch',
        'largest difference',
        'PyTorch, ms',
        'runtime, ms',
        'ratio',
    ]
    table = markdown_table(heads, map(cells, ROWS))
    write_pages({PAGE: with_tables(PAGE.read_text(), 'table', lambda name: table)}, args)


if __name__ == '__main__':
    main()
