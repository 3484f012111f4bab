"""SOFT++ Figure 6b: does the normalisation bound the norm of the inverse as landmarks grow?

Landmarks are averages of the tokens after the model's own LayerNorm and GELU. The spectral norms
are those of

  without   W^+, the pseudo-inverse of the landmark kernel W
  with      D^-1/2 W^+ D^-1/2, with the row sums D of W

as the attention computes it (20 Newton steps in fp32) and exactly (fp64).
"""

from argparse import Namespace
from copy import copy
from typing import TYPE_CHECKING, Dict, List

import numpy as np
import torch
from rich.progress import track
from torch import Tensor, nn

from mmlaplace.analysis.recording import Mixed, mixed_by
from mmlaplace.commands.command_line import build_backbone
from mmlaplace.models import SOFTAttention

from .figure_drawings import new
from .figure_numbers import default_size, images_of, landmark_kernel, name_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 448  # pixels of the images at least, for a stage with enough tokens
LANDMARKS = (49, 100, 196, 400, 784)


def norms(mixed: Mixed, num_landmarks: int) -> Dict[str, List[float]]:
    """Spectral norms for every head, by form and by how it was computed."""
    kernel = landmark_kernel(mixed, num_landmarks)
    exact = torch.linalg.pinv(landmark_kernel(mixed, num_landmarks, double=True), hermitian=True)
    root = kernel.double().sum(-1).rsqrt()
    found = {}
    for form, normalized in (('without', False), ('with', True)):
        attention = copy(mixed.attention)  # the same weights, in either form and without a ridge
        attention.normalized, attention.ridge = normalized, 0.0
        scaled = root[..., None] * exact * root[..., None, :] if normalized else exact
        for way, inverse in (('as computed', attention.invert(kernel).double()), ('exact', scaled)):
            found[f'{form}, {way}'] = torch.linalg.matrix_norm(inverse, 2).flatten().tolist()
    return found


def measure(backbone: nn.Module, images: List[Tensor], name: str) -> Dict[str, List[dict]]:
    """By form, the mean and the largest norm for each number of landmarks.

    They are those of all images, blocks, heads and stages that have so many tokens.
    """
    values: Dict[str, Dict[int, List[float]]] = {}
    for image in track(images, name, transient=True):
        for mixed in mixed_by(backbone, SOFTAttention, image):
            for m in LANDMARKS:
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


def inverse_norms(args: Namespace) -> dict:
    """The norms with random and with trained weights."""
    config, checkpoint, _ = args.model[0]
    images = next(iter(images_of(args, default_size(args, SIDE)).values()))
    weights = {'random weights': None, 'trained': checkpoint}
    found = {
        name: measure(build_backbone(config, file), images, name) for name, file in weights.items()
    }
    return dict(model=name_of(args.model[0]), norms=found)


def draw_inverse_norms(found: dict) -> 'Figure':
    """Norms over landmarks m, with the exponent a of norm ~ m^a."""
    figure, axes = new(2, 5, 4, sharey=True)
    for axis, (name, forms) in zip(axes, found['norms'].items()):
        for form, rows in forms.items():
            marks, means = ([row[key] for row in rows] for key in ('landmarks', 'mean'))
            label = form.replace(',', ' D,')
            if len(marks) > 1:
                label += f' $m^{{{np.polyfit(np.log(marks), np.log(means), 1)[0]:.2f}}}$'
            color = 'tab:orange' if form.startswith('with,') else 'tab:blue'
            style = '-' if form.endswith('as computed') else ':'
            axis.loglog(marks, means, marker='o', color=color, linestyle=style, label=label)
            axis.set_xticks(marks, list(map(str, marks)))
        axis.set(title=name, xlabel='landmarks m')
        axis.minorticks_off()
        axis.legend(fontsize=8)
    axes[0].set_ylabel('spectral norm, mean')
    return figure
