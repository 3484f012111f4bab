"""Print parameters and MACs of every LaplacianFormer arch next to the published figures.

MACs are multiply-accumulates of one image (half the FLOPs). 'MACs' counts convolutions and linears,
as published tables do; 'with kernels' adds the products of the attention: kernels, their products
with the values, and the inverse by Cholesky.

Examples:
  python tools/get_complexity.py
  python tools/get_complexity.py --archs tiny --image-size 800 1333 --landmarks 100
"""

import argparse
from pathlib import Path
from typing import Dict

import yaml
from mmengine.registry import MODELS
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mmlaplace.models import LaplacianFormer
from mmlaplace.utils.complexity import Complexity, count_complexity

METAFILE = (
    Path(__file__).resolve().parent.parent / 'configs/classification/laplacianformer/metafile.yml'
)


def published_figures() -> Dict[str, dict]:
    """Published parameters, MACs and top-1 by arch, from the metafile."""
    models = yaml.safe_load(METAFILE.read_text())['Models']
    return {model['Metadata']['Arch']: model['Metadata']['Published'] for model in models}


def classifier_complexity(arch: str, image_size: tuple, landmarks: int) -> Complexity:
    """Of the backbone with the last norm and a head of 1000 classes, as papers count."""
    attention = dict(type='LaplacianAttention', landmarks=landmarks, solver='cholesky')
    config = dict(type='LaplacianFormer', arch=arch, out_indices=(3,), attn_cfg=attention)
    backbone = MODELS.build(config).to('meta')  # shapes are enough to count
    parameters, weight_macs, kernel_macs = count_complexity(backbone, (3, *image_size))
    head = 1000 * backbone.embed_dims[-1]
    return Complexity(parameters + head + 1000, weight_macs + head, kernel_macs)


def main() -> None:
    archs = list(LaplacianFormer.arch_zoo)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--archs', nargs='+', choices=archs, default=archs)
    parser.add_argument('--image-size', nargs=2, type=int, default=(224, 224), metavar=('H', 'W'))
    parser.add_argument('--landmarks', type=int, default=49, help='default: %(default)s')
    args = parser.parse_args()

    published = published_figures() if tuple(args.image_size) == (224, 224) else {}
    table = Table(title=f'LaplacianFormer at {args.image_size[0]} x {args.image_size[1]}')
    for column in (
        'arch',
        'params',
        'published',
        'MACs',
        'published',
        'with kernels',
        'FLOPs, all',
    ):
        table.add_column(column, justify='left' if column == 'arch' else 'right')
    for arch in track(args.archs, 'counting', transient=True):
        ours = classifier_complexity(arch, tuple(args.image_size), args.landmarks)
        theirs = published.get(arch)
        table.add_row(
            arch,
            f'{ours.parameters / 1e6:.2f} M',
            f'{theirs["Parameters"] / 1e6:.1f} M' if theirs else '-',
            f'{ours.weight_macs / 1e9:.2f} G',
            f'{theirs["MACs"] / 1e9:.2f} G' if theirs else '-',
            f'{ours.macs / 1e9:.2f} G',
            f'{2 * ours.macs / 1e9:.2f} G',
        )
    Console().print(table)


if __name__ == '__main__':
    main()
