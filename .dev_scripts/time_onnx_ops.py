"""Time an attention in ONNX Runtime: of standard operators, of ours, and in PyTorch, by turns.

By default it is the attention of LaplacianFormer-tiny's stages at 224 x 224, without its linears
and its convolution. With --config it is a whole model, whose files of export.py are given. All run
on one thread. Prints medians of the time on the CPU in milliseconds, and ratios to PyTorch with its
compiled ops.

Examples:
  OMP_NUM_THREADS=1 python .dev_scripts/time_onnx_ops.py
  OMP_NUM_THREADS=1 python .dev_scripts/time_onnx_ops.py --config CONFIG standard.onnx native.onnx
"""

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn as nn
from mmengine.config import Config
from torch import Tensor

from mmlaplace.analysis.measuring import interleave, seconds_of
from mmlaplace.deployment import exporting
from mmlaplace.deployment.deployable import deployable
from mmlaplace.model_zoo import build_model
from mmlaplace.models import LaplacianAttention

STAGES = ((64, 2, 56), (128, 4, 28), (320, 10, 14), (512, 16, 7))  # channels, heads, side


class Attention(nn.Module):
    """Landmarks, inverse and attention of queries, keys and values ``(3, B, N, C)``."""

    def __init__(self, channels: int, heads: int, side: int) -> None:
        super().__init__()
        self.attention = LaplacianAttention(channels, heads, (side, side)).eval()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        heads = self.attention.num_heads
        q, k, v = images.unflatten(-1, (heads, -1)).transpose(2, 3).unbind(0)
        return self.attention.mix(q, k, v, (self.side, self.side)).transpose(1, 2).flatten(2)


def write(module: nn.Module, tokens: Tensor, backend: str, path: Path) -> None:
    with exporting.backend_of('onnx', backend), torch.no_grad():
        program = torch.export.export(module, (tokens,), strict=False)
    exporting.write_onnx(program, path, dict(inputs=['images'], outputs=['out'], backend=backend))


def times(jobs: dict, rounds: int) -> dict:
    """Milliseconds on the CPU by turns, in which other programs on the machine do not count."""
    timer = partial(seconds_of, clock=time.process_time)
    # So many seconds that no job sits out.
    seconds = interleave(jobs, rounds, torch.device('cpu'), budget=1e6, timer=timer)
    found = {name: dict(median=1e3 * statistics.median(of)) for name, of in seconds.items()}
    for row in found.values():
        row['ratio'] = row['median'] / found['pytorch']['median']
    return {name: {k: round(v, 3) for k, v in row.items()} for name, row in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('files', nargs='*', type=Path, help='of --config, on images of one size')
    parser.add_argument('--config')
    parser.add_argument('--rounds', type=int, default=50, help='default: 50')
    parser.add_argument('--folder', type=Path, help='keeps the files of the attentions')
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if args.config:
        cfg = Config.fromfile(args.config)
        cfg.model.backbone.init_cfg = None
        form = deployable(build_model(cfg)).eval().requires_grad_(False)
        opened = {str(path): exporting.open_onnx(path, threads=1) for path in args.files}
        size = next(iter(opened.values()))[1]['size']
        images = 255 * torch.rand(1, 3, *size)
        jobs = {name: lambda run=run: run(images) for name, (run, _) in opened.items()}
        jobs['pytorch'] = torch.no_grad()(lambda: form(images))
        print(json.dumps(times(jobs, args.rounds), indent=2))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for channels, heads, side in STAGES:
            module = Attention(channels, heads, side).requires_grad_(False)
            tokens = torch.randn(3, 1, side * side, channels)
            jobs = dict(pytorch=torch.no_grad()(lambda m=module, x=tokens: m(x)))
            for name, backend in (('standard', 'reference'), ('ours', 'native')):
                path = folder / f'{name}_{side}.onnx'
                if not path.exists():
                    write(module, tokens, backend, path)
                run, _ = exporting.open_onnx(path, threads=1)
                torch.testing.assert_close(run(tokens)[0], jobs['pytorch'](), rtol=0, atol=1e-4)
                jobs[name] = lambda run=run, x=tokens: run(x)
            print(json.dumps(dict(channels=channels, side=side, **times(jobs, args.rounds))))


if __name__ == '__main__':
    main()
