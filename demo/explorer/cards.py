"""The panels of a view as HTML, in the colours of the page's theme."""

import base64
from fractions import Fraction
from html import escape
from typing import List, Tuple

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from PIL import Image

from mmlaplace.analysis.attention_rows import FAR, NEAR

from .pictures import BANDS, COLOURS, panel_picture, photograph
from .rows import Panel, colour_limits
from .view import View

STYLE = """
.explorer {display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 14px}
.explorer figure {margin: 0; padding: 10px; border: 1px solid var(--border-color-primary);
  border-radius: 8px; background: var(--block-background-fill); color: var(--body-text-color);
  display: flex; flex-direction: column; gap: 6px; font-size: 13px; line-height: 1.35}
.explorer .head {display: flex; flex-direction: column; min-height: 72px}
.explorer img {width: 100%; cursor: crosshair; border-radius: 4px; display: block}
.explorer b {overflow-wrap: anywhere}
.explorer .weights, .explorer .none {opacity: 0.75}
.explorer .random {color: #b45309; opacity: 1} .dark .explorer .random {color: #fbbf24}
.explorer .bar {display: flex; height: 10px; border-radius: 3px; overflow: hidden;
  background: var(--border-color-primary)}
.explorer .entropy {background: #6d7fd1}
.explorer .key {display: inline-block; width: 9px; height: 9px; border-radius: 2px;
  margin-right: 3px}
.explorer .numbers {display: flex; flex-wrap: wrap; gap: 2px 10px;
  font-variant-numeric: tabular-nums}
.explorer .none {padding: 12px 0}
.explorer-scale {display: flex; gap: 8px; align-items: center; margin-top: 12px; font-size: 13px}
.explorer-scale i {width: 180px; height: 10px; border-radius: 3px; background: COLOURS}
/* On a narrow window the pictures come before the controls. */
@media (max-width: 720px) {
  #controls {order: 2} #pictures {order: 1} .explorer .head {min-height: 0}}
.explorer-message {border-left: 4px solid #dc2626; padding: 8px 12px; font-size: 14px;
  background: var(--block-background-fill); color: var(--body-text-color)}
.explorer-links p {font-size: 13px; opacity: 0.75; margin-top: 8px}
.explorer-links a {color: var(--link-text-color); margin-right: 14px; font-size: 14px}
"""

# The colours of the panels, which lie over a pale photograph there.
STYLE = STYLE.replace(
    'COLOURS',
    f'linear-gradient(to right, {", ".join(map(to_hex, colormaps[COLOURS](range(0, 256, 15))))})',
)


def img(content: bytes, text: str, view: View) -> str:
    source = f'data:image/jpeg;base64,{base64.b64encode(content).decode()}'
    place = f'tabindex="0" data-x="{view.x:g}" data-y="{view.y:g}"'
    return f'<img class="ask" alt="{escape(text)}" {place} src="{source}">'


def message(text: str) -> str:
    """What went wrong, for all to see; nothing for no text."""
    return f'<div class="explorer-message" role="alert">{escape(text)}</div>' if text else ''


def links(view: View) -> str:
    """Links that save the view."""
    address = escape(view.address())
    return (
        '<div class="explorer-links">'
        f'<a id="save-png" href="rows.png{address}" download="attention_rows.png">save as PNG</a>'
        f'<a id="save-svg" href="rows.svg{address}" download="attention_rows.svg">save as SVG</a>'
        f'<p>near: up to {Fraction(NEAR)} of the longer side away, middle: up to {Fraction(FAR)}, '
        'far: beyond; shares of absolute weights. An entropy of 1 is uniform.</p></div>'
    )


def cards(image: Image.Image, panels: List[Panel], view: View, shape: Tuple[int, int]) -> str:
    """The image and the panels side by side."""
    sizes = set()
    for panel in panels:
        if panel.weights is not None:
            height, width = panel.weights.shape
            sizes.add(f'{height} × {width}')
    tokens = ', '.join(sorted(sizes))
    photo = img(photograph(image, view, shape), 'the image, with a cross on the query', view)
    first = (
        f'<figure><div class="head"><b>Image and query</b>'
        f'<span class="weights">click on any of the pictures, or use the arrow keys</span></div>'
        f'{photo}<div class="numbers"><span>x {view.x:.3f}</span><span>y {view.y:.3f}</span>'
        f'<span>{shape[1]} × {shape[0]} pixels</span>'
        f'<span>{f"{tokens} tokens" if tokens else ""}</span></div></figure>'
    )
    limits = colour_limits(panels, view.scale)
    low, high = 'lowest weight of each panel', 'highest'
    if view.scale == 'shared' and limits:
        low, high = (f'{limit:.2g}' for limit in limits[0])
    drawn = [card(image, panel, own, view, shape) for panel, own in zip(panels, limits)]
    return (
        f'<div class="explorer">{first}{"".join(drawn)}</div>'
        f'<div class="explorer-scale"><span>{low}</span><i></i><span>{high}</span></div>'
    )


def card(
    image: Image.Image,
    panel: Panel,
    limits: Tuple[float, float],
    view: View,
    shape: Tuple[int, int],
) -> str:
    """One row with its statistics, or why there is none."""
    kind = 'weights random' if panel.weights_are.startswith('random') else 'weights'
    matrix = f' · matrix {escape(panel.matrix)}' if panel.matrix else ''
    head = (
        f'<div class="head"><b>{escape(panel.title)}</b>'
        f'<span class="{kind}">{escape(panel.weights_are)}{matrix}</span></div>'
    )
    if panel.weights is None:
        return f'<figure>{head}<div class="none">{escape(panel.message)}</div></figure>'
    statistics = panel.statistics
    picture = img(panel_picture(image, panel, limits, view, shape), f'row of {panel.title}', view)
    bar = ''.join(
        f'<div style="width:{100 * getattr(statistics, band):.1f}%;background:{colour}"></div>'
        for band, colour in BANDS.items()
    )
    shares = ''.join(
        f'<span><span class="key" style="background:{colour}"></span>{band} '
        f'{getattr(statistics, band):.0%}</span>'
        for band, colour in BANDS.items()
    )
    low, high = np.nanmin(panel.weights), np.nanmax(panel.weights)
    negative = (
        f'<span>{statistics.negative:.0%} negative</span>' if statistics.negative >= 0.005 else ''
    )
    return (
        f'<figure class="row">{head}{picture}'
        f'<div class="numbers"><span>weights {low:.2g} to {high:.2g}</span>{negative}</div>'
        f'<div class="bar" title="share of weight over distance">{bar}</div>'
        f'<div class="numbers">{shares}</div>'
        f'<div class="bar" title="entropy of the row; 1 is uniform">'
        f'<div class="entropy" style="width:{100 * statistics.entropy:.1f}%"></div></div>'
        f'<div class="numbers"><span>entropy {statistics.entropy:.2f}</span></div></figure>'
    )
