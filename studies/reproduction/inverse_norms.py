"""SOFT++ Figure 6b: does the normalisation bound the norm of the inverse as landmarks grow?

Landmarks are averages of the tokens after the model's own LayerNorm and GELU. The spectral norms
are those of

  without   W^+, the pseudo-inverse of the landmark kernel W
  with      D^-1/2 W^+ D^-1/2, with the row sums D of W

as the attention computes it (20 Newton steps in fp32) and exactly (fp64).
"""

from argparse import Namespace
from copy import copy
from typing import TYPE_CHECKING, Dict, List, NamedTuple

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


class Form(NamedTuple):
    """A form of the inverse.

    Attributes:
        normalized: Whether it is ``D^-1/2 W^+ D^-1/2``. Otherwise it is ``W^+``.
        exact: Whether it is computed exactly. Otherwise as the attention computes it.
    """

    normalized: bool
    exact: bool


FORMS = [Form(normalized, exact) for normalized in (False, True) for exact in (False, True)]


def norms(mixed: Mixed, num_landmarks: int) -> Dict[Form, List[float]]:
    """Spectral norms of each form, for every head."""
    kernel = landmark_kernel(mixed, num_landmarks)
    exact = torch.linalg.pinv(landmark_kernel(mixed, num_landmarks, double=True), hermitian=True)
    root = kernel.double().sum(-1).rsqrt()
    found = {}
    for form in FORMS:
        if form.exact:
            inverse = root[..., None] * exact * root[..., None, :] if form.normalized else exact
        else:
            attention = copy(mixed.attention)  # the same weights, in either form, without a ridge
            attention.normalized, attention.ridge = form.normalized, 0.0
            inverse = attention.invert(kernel).double()
        found[form] = torch.linalg.matrix_norm(inverse, 2).flatten().tolist()
    return found


def measure(backbone: nn.Module, images: List[Tensor], name: str) -> List[dict]:
    """For each form, the mean and the largest norm by number of landmarks.

    They are those of all images, blocks, heads and stages that have so many tokens.
    """
    values: Dict[Form, Dict[int, List[float]]] = {form: {} for form in FORMS}
    for image in track(images, name, transient=True):
        for mixed in mixed_by(backbone, SOFTAttention, image):
            for m in LANDMARKS:
                if min(mixed.hw_shape) ** 2 >= m:
                    for form, found in norms(mixed, m).items():
                        values[form].setdefault(m, []).extend(found)
    return [
        dict(
            **form._asdict(),
            rows=[
                dict(landmarks=m, mean=float(np.mean(found)), largest=max(found))
                for m, found in by_number.items()
            ],
        )
        for form, by_number in values.items()
    ]


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
        for form in forms:
            landmarks, means = ([row[key] for row in form['rows']] for key in ('landmarks', 'mean'))
            label = 'with D' if form['normalized'] else 'without D'
            label += ', exact' if form['exact'] else ', as computed'
            if len(landmarks) > 1:
                exponent = np.polyfit(np.log(landmarks), np.log(means), 1)[0]
                label += f' $m^{{{exponent:.2f}}}$'
            color = 'tab:orange' if form['normalized'] else 'tab:blue'
            style = ':' if form['exact'] else '-'
            axis.loglog(landmarks, means, marker='o', color=color, linestyle=style, label=label)
            axis.set_xticks(landmarks, list(map(str, landmarks)))
        axis.set(title=name, xlabel='landmarks m')
        axis.minorticks_off()
        axis.legend(fontsize=8)
    axes[0].set_ylabel('spectral norm, mean')
    return figure
