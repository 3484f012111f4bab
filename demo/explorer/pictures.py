"""Rows as pictures: one for each panel on the page, and all of them as PNG or SVG."""

import io
from textwrap import fill
from typing import List, Tuple

import matplotlib
import numpy as np
from PIL import Image, ImageDraw

from .rows import Panel, colour_limits, last_block
from .view import View

SHOWN = 448  # pixels of a picture's longer side on the page
ALPHA = 0.75  # of the colours over the photograph
COLOURS = 'inferno'
BANDS = {'near': '#2a9d8f', 'middle': '#e9c46a', 'far': '#e76f51'}


def heated(
    image: Image.Image, panel: Panel, limits: Tuple[float, float], shape: Tuple[int, int]
) -> np.ndarray:
    """A row in colours over the pale photograph, ``(H, W, 3)`` in 0 to 1."""
    height, width = shape
    pale = 0.4 + 0.6 * np.asarray(image.convert('L').resize((width, height)), float) / 255
    pale = pale[..., None].repeat(3, axis=-1)
    tokens = panel.weights.repeat(panel.stride, 0).repeat(panel.stride, 1)[:height, :width]
    low, high = limits
    share = (tokens - low) / max(high - low, np.finfo(tokens.dtype).tiny)
    colours = matplotlib.colormaps[COLOURS](np.nan_to_num(share))[..., :3]
    alpha = np.where(np.isnan(tokens), 0.0, ALPHA)[..., None]  # nothing outside of the window
    return (1 - alpha) * pale + alpha * colours


def with_cross(picture: Image.Image, view: View, arm: int = 11) -> Image.Image:
    """A picture in the size of the page, with a cross on the query."""
    scale = SHOWN / max(picture.size)
    width, height = (round(side * scale) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.NEAREST)
    x, y = view.x * width, view.y * height
    draw = ImageDraw.Draw(picture)
    for colour, line, reach in (('black', arm // 2, arm + 2), ('white', arm // 5, arm)):
        draw.line((x - reach, y, x + reach, y), colour, line)
        draw.line((x, y - reach, x, y + reach), colour, line)
    return picture


def encoded(picture: Image.Image) -> bytes:
    """A picture as JPEG, which is small enough to be part of a page."""
    file = io.BytesIO()
    picture.save(file, 'JPEG', quality=88)
    return file.getvalue()


def photograph(image: Image.Image, view: View, shape: Tuple[int, int]) -> bytes:
    """The image with the query."""
    enlarged = tuple(side * SHOWN // max(shape) for side in shape[::-1])
    return encoded(with_cross(image.resize(enlarged, Image.Resampling.BICUBIC), view))


def panel_picture(
    image: Image.Image,
    panel: Panel,
    limits: Tuple[float, float],
    view: View,
    shape: Tuple[int, int],
) -> bytes:
    """A row over the image with the query."""
    pixels = (255 * heated(image, panel, limits, shape)).round().astype(np.uint8)
    return encoded(with_cross(Image.fromarray(pixels), view))


def exported(
    image: Image.Image, panels: List[Panel], view: View, shape: Tuple[int, int], format: str
) -> bytes:
    """All panels of a view as one picture with titles, statistics and a colour bar.

    Args:
        image, panels, view: What is drawn.
        shape: Height and width of the image for the models.
        format: ``'png'`` or ``'svg'``.
    """
    # Only what is saved needs the rest of matplotlib, which takes a second to import.
    from matplotlib import cm, colors, patheffects
    from matplotlib.figure import Figure

    columns = min(4, 1 + len(panels))
    lines = -(-(1 + len(panels)) // columns)
    height, width = shape
    figure = Figure(
        figsize=(2.7 * columns + 0.6, (2.5 * height / width + 1.15) * lines + 0.5),
        layout='constrained',
    )
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    axes[0].imshow(image, extent=(0, width, height, 0))
    axes[0].set_title('query +', fontsize=9)
    axes[0].set_xlabel(f'{view.x:.3f} of the width,\n{view.y:.3f} of the height', fontsize=7)
    heat = None
    for axis, panel, limits in zip(axes[1:], panels, colour_limits(panels, view.scale)):
        matrix = f', matrix {panel.matrix}' if panel.matrix else ''
        axis.set_title(
            fill(panel.title, 32) + '\n' + fill(panel.weights_are + matrix, 36),
            fontsize=7,
            parse_math=False,
        )
        if panel.weights is None:
            note = fill(panel.message[:400], 36)
            axis.text(
                0.5,
                0.5,
                note,
                fontsize=6,
                ha='center',
                va='center',
                in_layout=False,
                parse_math=False,
                transform=axis.transAxes,
            )
            continue
        axis.imshow(
            heated(image, panel, limits, shape),
            extent=(0, width, height, 0),
            interpolation='nearest',
        )
        axis.set_xlabel(statistics_text(panel), fontsize=7)
        heat = heat or cm.ScalarMappable(
            colors.Normalize(*(limits if view.scale == 'shared' else (0, 1))), COLOURS
        )
    for axis in axes[: 1 + len(panels)]:
        axis.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[], aspect='equal')
    for axis, panel in zip(axes, [None, *panels]):
        if panel is None or panel.weights is not None:
            axis.plot(
                view.x * width,
                view.y * height,
                '+',
                color='white',
                markersize=9,
                markeredgewidth=1.6,
                path_effects=[patheffects.withStroke(linewidth=3.2, foreground='black')],
            )
    for axis in axes[1 + len(panels) :]:
        axis.set_axis_off()
    if heat is not None:
        label = 'weight' if view.scale == 'shared' else 'weight, scaled in each panel'
        bar = figure.colorbar(heat, ax=axes.tolist(), pad=0.01, aspect=30)
        bar.set_label(label, fontsize=8)
        bar.ax.tick_params(labelsize=7)
    figure.suptitle(
        f'Rows of attention matrices: stage {view.stage}, {last_block(view)}, head {view.head}',
        fontsize=10,
    )
    file = io.BytesIO()
    figure.savefig(file, format=format, dpi=150)
    return file.getvalue()


def statistics_text(panel: Panel) -> str:
    """Range and statistics of a row, in two lines."""
    statistics = panel.statistics
    low, high = np.nanmin(panel.weights), np.nanmax(panel.weights)
    return (
        f'{low:.2g} to {high:.2g}, entropy {statistics.entropy:.2f}\n'
        f'near {statistics.near:.0%}, middle {statistics.middle:.0%}, far {statistics.far:.0%}'
    )
