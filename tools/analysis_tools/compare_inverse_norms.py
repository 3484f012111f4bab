"""Does SOFT++'s normalisation bound the norm of the inverse as landmarks grow? (Figure 6b there)

The landmarks are averages of the tokens after the model's own LayerNorm and GELU. On photographs,
the tool computes for each number m of landmarks the spectral norm of

  without   W^+, the pseudo-inverse of the landmark kernel W
  with      D^-1/2 W^+ D^-1/2, with the row sums D of W

once as the attention computes it (20 Newton steps in fp32) and once exactly (fp64), for a model
with random weights and for a trained one. Lines are means over images, blocks, heads and the stages
that have that many tokens. The table also has the exponent a of norm ~ m^a.

Example:
  python tools/analysis_tools/compare_inverse_norms.py CONFIG CHECKPOINT \\
      --out docs/logs/soft_norms.json --picture docs/images/soft_norms.png
"""

from copy import copy
from pathlib import Path
from typing import Dict, List

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mmlaplace.analysis.recording import Mixed, mixed_by, photographs
from mmlaplace.commands.command_line import (
    PICTURES,
    ToolParser,
    build_backbone,
    positive,
    preprocessor_of,
    write_json,
)
from mmlaplace.lab.figures import new_figure, save
from mmlaplace.models import SOFTAttention
from mmlaplace.models.layers import Landmarks
from mmlaplace.ops import gaussian_kernel

FORMS = {'without': False, 'with': True}


def norms(mixed: Mixed, num_landmarks: int) -> Dict[str, List[float]]:
    """Spectral norms for every head, by form and by how it was computed."""
    query = mixed.q * mixed.attention.head_dims**-0.25
    landmarks = Landmarks(num_landmarks)(query, mixed.hw_shape)
    landmarks = mixed.attention.landmark_norm(landmarks)
    kernel = gaussian_kernel(landmarks, landmarks, 1.0)
    in_fp64 = gaussian_kernel(landmarks.double(), landmarks.double(), 1.0)
    exact = torch.linalg.pinv(in_fp64, hermitian=True)
    root = kernel.double().sum(-1).rsqrt()
    found = {}
    for form, normalized in FORMS.items():
        attention = copy(mixed.attention)  # the same weights, in either form and without a ridge
        attention.normalized, attention.ridge = normalized, 0.0
        scaled = root[..., None] * exact * root[..., None, :] if normalized else exact
        for way, inverse in (('as computed', attention.invert(kernel).double()), ('exact', scaled)):
            found[f'{form}, {way}'] = torch.linalg.matrix_norm(inverse, 2).flatten().tolist()
    return found


def measure(backbone, images: list, numbers: List[int], name: str) -> Dict[str, List[dict]]:
    """Mean and largest norm for each number of landmarks, by form."""
    values: Dict[str, Dict[int, list]] = {}
    for image in track(images, name, transient=True):
        for mixed in mixed_by(backbone, SOFTAttention, image):
            for m in numbers:
                if min(mixed.hw_shape) ** 2 >= m:
                    for form, found in norms(mixed, m).items():
                        values.setdefault(form, {}).setdefault(m, []).extend(found)
    return {
        form: [
            dict(landmarks=m, mean=float(np.mean(found)), largest=max(found))
            for m, found in by_number.items()
        ]
        for form, by_number in values.items()
    }


def draw(results: Dict[str, dict], path: Path) -> None:
    figure, axes = new_figure(1, len(results), (10, 4), sharey=True)
    for axis, (name, forms) in zip(axes, results.items()):
        for form, rows in forms.items():
            color = 'tab:orange' if form.startswith('with,') else 'tab:blue'
            axis.loglog(
                [row['landmarks'] for row in rows],
                [row['mean'] for row in rows],
                marker='o',
                color=color,
                linestyle='-' if form.endswith('as computed') else ':',
                label=form.replace('with,', 'with D,').replace('without,', 'without D,'),
            )
        axis.set(title=name, xlabel='landmarks m')
        ticks = [row['landmarks'] for row in rows]
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel('spectral norm, mean')
    axes[0].legend()
    save(figure, path, dpi=120)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_trained_model('model with the backbone SOFT')
    parser.add_argument('--landmarks', nargs='+', type=positive, default=[49, 100, 196, 400, 784])
    parser.add_argument(
        '--image-size', nargs=2, type=positive, default=[448, 448], metavar=('H', 'W'),
        help='of the photographs; default: 448 448',
    )  # fmt: skip
    parser.add_output('--out', default=Path('work_dirs/soft_norms.json'))
    parser.add_output('--picture', suffixes=PICTURES, default=Path('work_dirs/soft_norms.png'))
    args = parser.parse_args()
    torch.manual_seed(0)
    backbones = {
        'random weights': build_backbone(args.config),
        'trained': build_backbone(args.config, args.checkpoint),
    }
    args.landmarks = sorted(set(args.landmarks))
    images = photographs(tuple(args.image_size), preprocessor_of(args.config))
    results = {
        name: measure(backbone, images, args.landmarks, name)
        for name, backbone in backbones.items()
    }

    if not any(results.values()):
        parser.error(
            f'maps of images of {args.image_size} have no room for {args.landmarks} landmarks'
        )
    table = Table('weights', 'form', *(f'm = {m}' for m in args.landmarks), 'exponent')
    for name, forms in results.items():
        for form, rows in forms.items():
            means = {row['landmarks']: row['mean'] for row in rows}
            cells = [f'{means[m]:.3g}' if m in means else '-' for m in args.landmarks]
            exponent = '-'  # of a line, which needs two points
            if len(means) > 1:
                exponent = f'{np.polyfit(*np.log([*means.items()]).T, 1)[0]:.2f}'
            table.add_row(name, form, *cells, exponent)
    Console(width=120).print(table)
    draw(results, args.picture)
    write_json(args.out, dict(size=args.image_size, config=args.config, norms=results))
    print('wrote', args.out, 'and', args.picture)


if __name__ == '__main__':
    main()
