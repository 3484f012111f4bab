"""Do PolaFormer's powers lower the entropy of attention rows? (Theorem 1 there)

The positive sequence entropy of the products s_j = <phi(q), phi(k_j)> of one query with all keys is
-sum p_j log p_j with p_j = s_j / sum s, here divided by log N, so that 1 is uniform. Measured with
phi(x) = [relu(x)^p, relu(-x)^p]

  random    normal queries and keys, for the powers 1 to 5
  trained   the queries and keys of a trained model on photographs, with its own powers against 1

and for how many rows the power lowers it, as the theorem says it does for every row.

Example:
  python tools/analysis_tools/compare_row_entropy.py CONFIG CHECKPOINT \\
      --out docs/logs/pola_entropy.json --picture docs/images/pola_entropy.png
"""

import math
from pathlib import Path
from typing import List

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from mmlaplace.analysis.recording import Mixed, mixed_by, photographs
from mmlaplace.commands.command_line import ToolParser, build_backbone, write_json
from mmlaplace.models import PolaAttention

matplotlib.use('Agg')
import matplotlib.pyplot as plt

POWERS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
QUERIES = 256  # sampled


def features(x: Tensor, power) -> Tensor:
    return torch.cat([F.relu(x) ** power, F.relu(-x) ** power], dim=-1)


def entropy(query: Tensor, key: Tensor) -> Tensor:
    """Of each query's products with all keys, 1 where they are equal: ``(B, heads, N)``."""
    products = query @ key.mT
    shares = products / products.sum(-1, keepdim=True)
    return -torch.xlogy(shares, shares).sum(-1) / math.log(key.shape[-2])


def of_random_features(tokens: int = 196, head_dims: int = 32) -> List[dict]:
    """Mean entropy under each power, and the share of rows below their entropy under 1."""
    query, key = (torch.randn(16, 1, n, head_dims).double() for n in (QUERIES, tokens))
    plain = entropy(features(query, 1.0), features(key, 1.0))
    rows = []
    for power in POWERS:
        found = entropy(features(query, power), features(key, power))
        rows.append(
            dict(
                power=power, mean=found.mean().item(), lower=(found < plain).double().mean().item()
            )
        )
    return rows


def of_trained(mixed: Mixed) -> List[dict]:
    """Entropy under the learned powers and under 1, for both streams of one attention."""
    attention = mixed.attention
    scale = F.softplus(attention.scale).unflatten(0, (attention.num_heads, 1, -1))
    places = torch.randperm(mixed.q.shape[2])[:QUERIES]
    query, key = ((t / scale).double() for t in (mixed.q[:, :, places], mixed.k))
    power = 1 + attention.alpha * torch.sigmoid(attention.power.double())
    rows = []
    for stream, sign in (('same signs', 1), ('opposite signs', -1)):
        sharp = entropy(features(sign * query, power), features(key, power))
        plain = entropy(features(sign * query, 1.0), features(key, 1.0))
        seen = torch.isfinite(sharp) & torch.isfinite(plain)  # else no key shares a sign
        rows.append(
            dict(
                stage=mixed.stage + 1,
                block=mixed.block + 1,
                stream=stream,
                power=power.mean().item(),
                plain=plain[seen].mean().item(),
                sharp=sharp[seen].mean().item(),
                lower=(sharp < plain)[seen].double().mean().item(),
            )
        )
    return rows


def draw(random_rows: List[dict], trained_rows: List[dict], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout='constrained')
    left.plot([r['power'] for r in random_rows], [r['mean'] for r in random_rows], marker='o')
    left.set(title='random features', xlabel='power p', ylabel='entropy / log N')
    labels = [f'{r["stage"]}.{r["block"]}\n{r["stream"].split()[0]}' for r in trained_rows]
    places = np.arange(len(labels))
    right.bar(places - 0.2, [r['plain'] for r in trained_rows], 0.4, label='power 1')
    right.bar(places + 0.2, [r['sharp'] for r in trained_rows], 0.4, label='learned powers')
    right.set_xticks(places, labels, fontsize=7)
    right.set(title='trained model, stage.block and stream', ylabel='entropy / log N')
    right.legend(loc='lower left')
    for axis in (left, right):
        axis.grid(alpha=0.3, axis='y')
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_trained_model('model with PolaAttention')
    parser.add_argument('--size', nargs=2, type=int, default=[224, 224], help='height, width')
    parser.add_output('--out', default=Path('work_dirs/pola_entropy.json'))
    parser.add_output('--picture', default=Path('work_dirs/pola_entropy.png'))
    args = parser.parse_args()
    torch.manual_seed(0)
    backbone = build_backbone(args.config, args.checkpoint)
    random_rows = of_random_features()
    by_place = {}
    for image in track(photographs(tuple(args.size)), 'photographs'):
        for mixed in mixed_by(backbone, PolaAttention, image):
            for row in of_trained(mixed):
                by_place.setdefault((row['stage'], row['block'], row['stream']), []).append(row)
    trained_rows = [
        {
            **rows[0],
            **{k: float(np.mean([r[k] for r in rows])) for k in ('plain', 'sharp', 'lower')},
        }
        for rows in by_place.values()
    ]

    console = Console()
    table = Table('power', 'entropy / log N', 'rows lower than under 1', title='random features')
    for row in random_rows:
        table.add_row(f'{row["power"]:.1f}', f'{row["mean"]:.4f}', f'{row["lower"]:.2%}')
    console.print(table)
    table = Table(
        'stage.block', 'stream', 'mean power', 'entropy, power 1', 'learned', 'rows lower'
    )
    for row in trained_rows:
        table.add_row(
            f'{row["stage"]}.{row["block"]}',
            row['stream'],
            f'{row["power"]:.2f}',
            f'{row["plain"]:.4f}',
            f'{row["sharp"]:.4f}',
            f'{row["lower"]:.2%}',
        )
    console.print(table)
    draw(random_rows, trained_rows, args.picture)
    write_json(
        args.out, dict(size=args.size, config=args.config, random=random_rows, trained=trained_rows)
    )
    print('wrote', args.out, 'and', args.picture)


if __name__ == '__main__':
    main()
