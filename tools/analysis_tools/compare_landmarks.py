"""How many landmarks? Cost, and error of the approximated kernel matrix, on large images.

On photographs resized to --size, each number m of landmarks gives, for every stage,

  error   |G^ - G| / |G| (Frobenius) of G^ = k(Q, L) (k(L, L) + ridge I)^-1 k(L, K) to the exact
          G = k(Q, K), on sampled queries and all keys, over heads and blocks; Q and K are those of
          the trained model of --config
  time    of LaplacianFormer --arch, one image, without and with gradients, in interleaved rounds

Example:
  python tools/analysis_tools/compare_landmarks.py CONFIG CHECKPOINT --out docs/logs/landmarks.json
"""

import statistics
from functools import partial
from pathlib import Path
from typing import Dict, List

import torch
from mmengine.registry import MODELS
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mmlaplace.analysis.measuring import describe_machine, interleave, model_job
from mmlaplace.analysis.recording import mixed_by, photographs
from mmlaplace.commands.command_line import ToolParser, build_backbone, write_json
from mmlaplace.models.attentions.laplacian import LaplacianAttention
from mmlaplace.models.layers import Landmarks

QUERIES = 256  # sampled


def error(attention, q, k, hw_shape, num_landmarks: int) -> float:
    """Relative error of the approximated kernel matrix, for sampled queries."""
    kernel = partial(attention.kernel_fn, bandwidth=attention.bandwidth)
    landmarks = Landmarks(num_landmarks)(k, hw_shape)
    query = q[:, :, torch.randperm(q.shape[2])[:QUERIES]]
    inverse = attention.invert(kernel(landmarks, landmarks))
    approximated = kernel(query, landmarks) @ inverse @ kernel(landmarks, k)
    exact = kernel(query, k)
    return (torch.linalg.norm(approximated - exact) / torch.linalg.norm(exact)).item()


def errors_by_stage(backbone, images: list, numbers: List[int]) -> Dict[int, List[float]]:
    """Mean error in each stage, for each number of landmarks."""
    found = {m: [[] for _ in backbone.stages] for m in numbers}
    for image in track(images, 'errors'):
        for mixed in mixed_by(backbone, LaplacianAttention, image):
            for m in numbers:
                found[m][mixed.stage].append(
                    error(mixed.attention, mixed.q, mixed.k, mixed.hw_shape, m)
                )
    return {m: [statistics.mean(values) for values in stages] for m, stages in found.items()}


def seconds_by_number(arch: str, size: tuple, numbers: List[int], rounds: int) -> Dict[int, tuple]:
    """Median seconds of a forward pass, and of forward and backward, for each number."""
    image, jobs = torch.randn(1, 3, *size), {}
    for m in numbers:
        torch.manual_seed(0)
        attn_cfg = dict(num_landmarks=m)
        model = MODELS.build(dict(type='LaplacianFormer', arch=arch, attn_cfg=attn_cfg))
        jobs[m, 'forward'] = model_job(model, image, train=False)
        jobs[m, 'backward'] = model_job(model, image, train=True)
    seconds = interleave(jobs, rounds, torch.device('cpu'), budget=60)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    return {m: (median[m, 'forward'], median[m, 'backward']) for m in numbers}


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_trained_model('model with LaplacianAttention')
    parser.add_argument('--landmarks', nargs='+', type=int, default=[49, 100, 196])
    parser.add_argument('--size', nargs=2, type=int, default=[800, 1333], help='height, width')
    parser.add_argument('--arch', default='tiny', help='that is timed; default: %(default)s')
    parser.add_argument('--rounds', type=int, default=7, help='default: %(default)s')
    parser.add_output('--out', default=Path('work_dirs/landmarks.json'))
    args = parser.parse_args()
    torch.manual_seed(0)
    backbone = build_backbone(args.config, args.checkpoint)
    errors = errors_by_stage(backbone, photographs(tuple(args.size)), args.landmarks)
    seconds = seconds_by_number(args.arch, tuple(args.size), args.landmarks, args.rounds)

    stages = [f'stage {i + 1}' for i in range(len(backbone.stages))]
    table = Table('m', *(f'error, {stage}' for stage in stages), 'forward ms', '+ backward ms')
    rows = []
    for m in args.landmarks:
        forward, backward = seconds[m]
        cells = [f'{value:.3f}' for value in errors[m]]
        table.add_row(str(m), *cells, f'{1e3 * forward:.0f}', f'{1e3 * backward:.0f}')
        rows.append(dict(landmarks=m, errors=errors[m], forward_s=forward, backward_s=backward))
    Console().print(table)
    result = dict(machine=describe_machine(torch.device('cpu')), size=args.size, arch=args.arch)
    result.update(config=args.config, rows=rows)
    write_json(args.out, result)
    print('wrote', args.out)


if __name__ == '__main__':
    main()
