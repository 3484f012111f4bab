"""When does SOFT's attention contribute? Its term beside the convolution of V, and what decides it.

The term C W^+ C^T V is small where queries lie far from their landmarks, as the kernel is
exp(-d^2 / 2). Landmarks come out of LayerNorm and GELU, so their norm is that of the norm's weights
whatever the queries are. The study takes a SOFT config, and

  starts    without training, scales the weights that make the queries (x 1 is the paper's
            initialisation, of standard deviation 0.02) and the weights of the landmarks' norm, and
            gives root mean squares of the term and of the convolution in each stage
  sizes     the same for larger models, block by block, as they start
  training  trains variants for the same few steps on mini textures, and follows these sizes

Example:
  python tools/dataset_converters/make_mini_datasets.py --tasks textures
  python tools/analysis_tools/soft_term.py --steps 200 --out docs/logs/soft_term.json
"""

import time
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mmlaplace.analysis.attention_statistics import root_mean_square, term_sizes
from mmlaplace.analysis.measuring import describe_machine
from mmlaplace.analysis.recording import MEAN, STD, mixed_by
from mmlaplace.commands.command_line import ToolParser, read_config, write_json
from mmlaplace.models import SOFTAttention
from mmlaplace.ops import gaussian_kernel

CONFIG = (
    Path(__file__).resolve().parents[2] / 'configs/classification/soft/softpp-micro_1xb32_mini.py'
)
LOOKS = (0, 10, 30, 100, 300, 1000, 3000)  # steps after which sizes are taken, and the last
QUERIES = (1.0, 3.0, 10.0, 30.0, 100.0)  # factors of the weights that make the queries
NORMS = (1.0, 0.3, 0.1)  # factors of the weights of the landmarks' norm


# What is trained: factors of these weights, and whether there is a convolution of V.
VARIANTS: Dict[str, dict] = {
    'as in the paper': dict(),
    'norm x 0.1': dict(norm=0.1),
    'without the convolution': dict(lepe_kernel=0),
    'norm x 0.1, without the convolution': dict(norm=0.1, lepe_kernel=0),
    'queries x 30': dict(query=30.0),
}


def built(cfg: dict, variant: dict, seed: int = 0) -> nn.Module:
    """The backbone of a variant."""
    torch.manual_seed(seed)
    cfg = dict(cfg, init_cfg=None, out_type='featmap', attn_cfg=dict(cfg.get('attn_cfg') or {}))
    if 'lepe_kernel' in variant:
        cfg['attn_cfg'] = without_local_branch(cfg['attn_cfg'], variant['lepe_kernel'])
    backbone = MODELS.build(cfg)
    for attention in soft_attentions(backbone):
        with torch.no_grad():
            # Rows of the shared queries and keys come first.
            attention.qkv.weight[: attention.embed_dims] *= variant.get('query', 1.0)
            attention.landmark_norm[0].weight *= variant.get('norm', 1.0)
    return backbone


def without_local_branch(attn_cfg: dict, kernel: int) -> dict:
    """SOFT has softmax in its last stage, whose convolution stays as it is."""
    per_stage = dict(attn_cfg.get('per_stage', {}), lepe_kernel=(kernel, kernel, kernel, None))
    return dict(attn_cfg, per_stage=per_stage)


def soft_attentions(backbone: nn.Module) -> List[SOFTAttention]:
    return [module for module in backbone.modules() if isinstance(module, SOFTAttention)]


def geometry(backbone: nn.Module, image: Tensor) -> List[dict]:
    """For each attention: norms of queries and landmarks, the kernel between them, the term."""
    rows = []
    for mixed in mixed_by(backbone, SOFTAttention, image):
        attention = mixed.attention
        query = mixed.q * attention.head_dims**-0.25
        landmarks = attention.landmark_norm(attention.landmarks(query, mixed.hw_shape))
        with torch.no_grad():
            kernel = gaussian_kernel(query, landmarks, 1.0)
            term = attention.mix(mixed.q, mixed.k, mixed.v, mixed.hw_shape)
        rows.append(
            dict(
                stage=mixed.stage + 1,
                block=mixed.block + 1,
                query_norm=query.norm(dim=-1).mean().item(),
                landmark_norm=landmarks.norm(dim=-1).mean().item(),
                kernel=kernel.mean().item(),
                largest_kernel=kernel.amax(-1).mean().item(),
                term=root_mean_square(term),
                values=root_mean_square(mixed.v),
            )
        )
    return rows


def sizes_of(backbone: nn.Module, images: Tensor) -> List[dict]:
    """:func:`geometry`, with the size of the local branch where there is one."""
    was_training = backbone.training
    backbone.eval()
    rows = geometry(backbone, images)
    local = [row.get('local') for row in term_sizes(backbone, [images])]
    backbone.train(was_training)
    # The last stage's softmax has a convolution too, and comes after them.
    with_local = all(attention.lepe is not None for attention in soft_attentions(backbone))
    for row, size in zip(rows, local if with_local else []):
        row['local'] = size
    return rows


def loaded(folder: Path, per_class: int) -> Tuple[Tensor, Tensor]:
    """Normalised images ``(n, 3, H, W)`` of a folder of classes, and their labels."""
    from torchvision.io import ImageReadMode, read_image

    images, labels = [], []
    for label, group in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
        for path in sorted(group.glob('*.png'))[:per_class]:
            images.append(read_image(str(path), ImageReadMode.RGB))
            labels.append(label)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (torch.stack(images) - mean) / std, torch.tensor(labels)


def crops(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """One random cut of a side for all images of a batch, mirrored or not."""
    room = images.shape[-1] - side + 1
    top, left, flip = (int(torch.randint(n, (), generator=generator)) for n in (room, room, 2))
    cut = images[..., top : top + side, left : left + side]
    return cut.flip(-1) if flip else cut


def train(
    cfg: dict, variant: dict, data: tuple, held_out: tuple, steps: int, batch: int, lr: float
) -> Iterator[Tuple[dict, nn.Module]]:
    """Train a variant. After some steps: all its sizes so far, top-1 in %, and the backbone."""
    backbone, side = built(cfg, variant).train(), cfg['img_size']
    images, labels = data
    head = nn.Linear(backbone.embed_dims[-1], int(labels.max()) + 1)
    weights = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr, weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(0)
    seen = crops(held_out[0], side, generator)
    classify = lambda x: head(backbone(x)[-1].mean((2, 3)))  # noqa: E731
    looks, started, loss = [], time.process_time(), None
    for step in range(steps + 1):
        if step in LOOKS or step == steps:
            # Images of several classes, as they lie sorted.
            rows = sizes_of(backbone, seen[:: max(1, len(seen) // 8)][:8])
            looks.append(dict(step=step, loss=loss, attentions=rows))
            backbone.eval()
            with torch.no_grad():
                guesses = torch.cat([classify(part).argmax(1) for part in seen.split(128)])
            backbone.train()
            top1 = 100 * (guesses == held_out[1]).float().mean().item()
            seconds = time.process_time() - started
            yield dict(variant=variant, looks=looks, top1=top1, cpu_seconds=seconds), backbone
        if step == steps:
            break
        chosen = torch.randint(len(images), (batch,), generator=generator)
        found = F.cross_entropy(classify(crops(images[chosen], side, generator)), labels[chosen])
        optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        loss = found.item()


def starts(cfg: dict, images: Tensor) -> List[dict]:
    """Sizes without training, by the factors of the queries and of the landmarks' norm."""
    grid = [dict(query=query, norm=norm) for norm in NORMS for query in QUERIES]
    return [dict(start, attentions=sizes_of(built(cfg, start), images)) for start in grid]


def ratio(row: dict) -> float:
    """The term in units of the convolution, or of the values where there is none."""
    return row['term'] / row.get('local', row['values'])


def show(found: dict) -> None:
    console = Console(width=140)
    first = found['starts'][0]['attentions']
    names = [f'{row["stage"]}.{row["block"]}' for row in first]
    table = Table('queries x', 'norm x', *names, title='term / convolution, as models start')
    for row in found['starts']:
        cells = [f'{ratio(each):.1e}' for each in row['attentions']]
        table.add_row(f'{row["query"]:g}', f'{row["norm"]:g}', *cells)
    console.print(table)
    for name, rows in found['sizes'].items():
        cells = ', '.join(f'{row["stage"]}.{row["block"]} {ratio(row):.1e}' for row in rows)
        console.print(f'{name}, as it starts: {cells}')
    table = Table('variant', 'step', 'loss', *names, 'top-1', title='term / convolution')
    for name, run in found['training'].items():
        for look in run['looks']:
            last = look is run['looks'][-1]
            loss = '' if look['loss'] is None else f'{look["loss"]:.2f}'
            cells = [f'{ratio(row):.1e}' for row in look['attentions']]
            top1 = f'{run["top1"]:.1f}' if last else ''
            table.add_row(name, str(look['step']), loss, *cells, top1)
    console.print(table)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--config', default=str(CONFIG), help='with the backbone SOFT')
    parser.add_argument('--data-root', type=Path, default=Path('data/mini/textures'))
    parser.add_argument('--variants', nargs='+', choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument('--archs', nargs='*', default=['tiny', 'small'], help='for sizes')
    parser.add_argument('--arch-side', type=int, default=224, help='of the images for sizes')
    parser.add_argument('--steps', type=int, default=200, help='default: %(default)s')
    parser.add_argument('--batch-size', type=int, default=32)
    parser.add_argument('--lr', type=float, default=1e-3)
    parser.add_argument('--per-class', type=int, default=240, help='training images of a class')
    parser.add_argument('--weights', type=Path, help='folder to keep the trained weights in')
    parser.add_output('--out', default=Path('work_dirs/soft_term.json'))
    args = parser.parse_args()
    if not args.data_root.is_dir():
        parser.error(
            f'{args.data_root} is missing; python tools/dataset_converters/make_mini_datasets.py '
            '--tasks textures makes it'
        )
    cfg = read_config(args.config).model.backbone.to_dict()
    side = cfg['img_size']
    held_out = loaded(args.data_root / 'val', args.per_class)
    data = loaded(args.data_root / 'train', args.per_class)
    looked_at = held_out[0][:: max(1, len(held_out[0]) // 8)][:8, :, :side, :side]
    machine = describe_machine(torch.device('cpu'))
    told = ('variants', 'archs', 'arch_side', 'steps', 'batch_size', 'lr', 'per_class')
    settings = dict({key: getattr(args, key) for key in told}, config=Path(args.config).name)
    found = dict(settings=settings, machine=machine, training={})
    found['starts'] = starts(cfg, looked_at)
    write_json(args.out, found)
    larger = F.interpolate(looked_at[:1], (args.arch_side,) * 2, mode='bicubic')
    found['sizes'] = {
        arch: sizes_of(built(dict(type=cfg['type'], arch=arch, out_indices=(3,)), {}), larger)
        for arch in args.archs
    }
    for name in args.variants:
        steps = train(cfg, VARIANTS[name], data, held_out, args.steps, args.batch_size, args.lr)
        for run, backbone in steps:
            found['training'][name] = run
            write_json(args.out, found)  # as far as it is
            print(f'{name}, step {run["looks"][-1]["step"]}: top-1 {run["top1"]:.1f}', flush=True)
            if args.weights is not None:
                args.weights.mkdir(parents=True, exist_ok=True)
                weights = args.weights / f'{name.replace(" ", "-")}.pth'
                torch.save(backbone.state_dict(), weights)
    show(found)
    print('wrote', args.out)


if __name__ == '__main__':
    main()
