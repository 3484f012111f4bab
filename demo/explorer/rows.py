"""The exact rows of the attentions of a view, and their statistics."""

import math
from collections import OrderedDict
from dataclasses import replace
from threading import Lock
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.nn as nn

from mmlaplace.analysis.attention_rows import (
    RowStatistics,
    attention_map,
    check_rows,
    matrices_of,
    row_statistics,
)
from mmlaplace.analysis.recording import Mixed, mixed_by, normalized
from mmlaplace.models import BaseAttention, WindowAttention

from .images import Images, fitted
from .models import QUICK_START, Models, Source
from .view import LAST, View

MOST_MODELS = 12
MOST_RECORDED = 48


class Panel(NamedTuple):
    """A row of one matrix, or why there is none.

    Attributes:
        title: The model.
        weights_are: Random or trained, in words.
        matrix: Name of the matrix.
        weights: The row over the map, ``(H, W)``; NaN outside of the query's window. None where
            there is no row.
        stride: Pixels of a token.
        statistics: Of the row.
        message: Why there is none.
    """

    title: str
    weights_are: str
    matrix: str = ''
    weights: Optional[np.ndarray] = None
    stride: int = 1
    statistics: Optional[RowStatistics] = None
    message: str = ''


class Offered(NamedTuple):
    """How many stages, blocks and heads the models of a view have at most, and its matrices."""

    stages: int = 1
    blocks: int = 1
    heads: int = 1
    matrices: Tuple[str, ...] = ()


def inner(block: nn.Module) -> Optional[BaseAttention]:
    """The attention of a block, inside of windows where it has them. None without one."""
    attention = block.attn
    return attention.attn if isinstance(attention, WindowAttention) else attention


def numbers(count: int) -> str:
    return '0' if count == 1 else f'0 to {count - 1}'


def block_of(backbone: nn.Module, view: View, needs_rows: bool = True) -> Tuple[int, nn.Module]:
    """Number and module of the block of a view.

    Raises:
        ValueError: If the backbone lacks the stage, block or head, or needs rows and has none; says
            what to choose.
    """
    stages = backbone.stages
    if view.stage >= len(stages):
        raise ValueError(f'there is no stage {view.stage}; choose {numbers(len(stages))}')
    blocks = stages[view.stage]['blocks']
    if view.block >= len(blocks):
        raise ValueError(
            f'stage {view.stage} has no block {view.block}; choose {numbers(len(blocks))}'
        )
    number = view.block % len(blocks)
    attention = inner(blocks[number])
    if attention is None:
        others = [str(n) for n, block in enumerate(blocks) if inner(block) is not None]
        instead = f'block {" or ".join(others)}' if others else 'another stage'
        raise ValueError(f'block {number} of stage {view.stage} has no attention; choose {instead}')
    if needs_rows:
        check_rows(attention)
    if view.head >= attention.num_heads:
        raise ValueError(
            f'stage {view.stage} has no head {view.head}; choose {numbers(attention.num_heads)}'
        )
    return number, blocks[number]


class Explorer:
    """Computes the panels of views. Models and what they mixed of an image are kept.

    A click on the image computes one row of each matrix, in linear time for linear attentions.

    Args:
        images, models: What is chosen from.
    """

    def __init__(self, images: Images, models: Models) -> None:
        self.images = images
        self.models = models
        self.recorded: OrderedDict[tuple, Dict[Tuple[int, int], Mixed]] = OrderedDict()
        self.lock = Lock()  # recording replaces methods of the modules for a while

    def panels(self, view: View) -> List[Panel]:
        """A panel for each matrix of each model of a view.

        Raises:
            ValueError: If the image or a model is not there, or there are too many models.
        """
        image = self.images.get(view.image)
        sources = self.models.chosen(view.trained, view.attention, view.host)
        if not sources:
            raise ValueError('there is nothing to draw; choose an attention or a trained model')
        if len(sources) > MOST_MODELS:
            raise ValueError(
                f'{len(sources)} models are too many to draw side by side; choose {MOST_MODELS} or '
                'fewer'
            )
        shape = fitted(image, view.size)
        with self.lock:
            return [
                panel for source in sources for panel in self._panels_of(source, view, image, shape)
            ]

    def offered(self, view: View) -> Offered:
        """What there is to choose for the models of a view; those that cannot be built are none."""
        offered = Offered()
        try:
            sources = self.models.chosen(view.trained, view.attention, view.host)
        except ValueError:
            return offered
        matrices: List[str] = []
        for source in sources[:MOST_MODELS]:
            try:
                with self.lock:
                    stages = self.models.backbone(source).stages
            except ValueError:
                continue  # its panel says why
            blocks = stages[min(view.stage, len(stages) - 1)]['blocks']
            attention = inner(blocks[view.block % len(blocks)])
            heads = 1 if attention is None else attention.num_heads
            mixes = attention is not None and attention.mixes_tokens
            if mixes and len(matrices_of(attention)) > 1:
                matrices += [name for name in matrices_of(attention) if name not in matrices]
            offered = Offered(
                stages=max(offered.stages, len(stages)),
                blocks=max(offered.blocks, len(blocks)),
                heads=max(offered.heads, heads),
                matrices=tuple(matrices),
            )
        return offered

    def _panels_of(self, source: Source, view: View, image, shape: Tuple[int, int]) -> List[Panel]:
        panel = Panel(source.title, source.weights)
        try:
            backbone = self.models.backbone(source)
            number, block = block_of(backbone, view)
        except ValueError as error:
            return [panel._replace(message=str(error))]
        mixed = self._mixed(source, backbone, view, image, shape)[view.stage, number]
        matrices = matrices_of(inner(block))
        drawn = [name for name in matrices if name in view.matrix] or list(matrices)[:1]
        height, width = mixed.map_shape
        place = (int(view.y * height), int(view.x * width))
        panels = []
        for name in drawn:
            with torch.no_grad():
                weights = attention_map(mixed, place, view.head, **matrices[name])
            panels.append(
                panel._replace(
                    matrix=name,
                    weights=weights.numpy(),
                    stride=math.prod(backbone.stage_strides[: view.stage + 1]),
                    statistics=row_statistics(mixed, weights, place),
                )
            )
        return panels

    def _mixed(
        self, source: Source, backbone: nn.Module, view: View, image, shape: Tuple[int, int]
    ) -> Dict[Tuple[int, int], Mixed]:
        """What every block mixed of the image, by stage and block."""
        key = (repr(source), view.image, shape)
        if key not in self.recorded:
            pixels = normalized(image, shape, source.preprocessor)
            self.recorded[key] = {
                (mixed.stage, mixed.block): mixed
                for mixed in mixed_by(backbone, BaseAttention, pixels)
            }
        self.recorded.move_to_end(key)
        while len(self.recorded) > MOST_RECORDED:
            self.recorded.popitem(last=False)
        return self.recorded[key]


def colour_limits(panels: List[Panel], scale: str) -> List[Tuple[float, float]]:
    """Lowest and highest weight of each panel, or of all of them for the shared scale."""
    own = []
    lows, highs = [], []
    for panel in panels:
        low, high = 0.0, 1.0
        if panel.weights is not None:
            low, high = float(np.nanmin(panel.weights)), float(np.nanmax(panel.weights))
            lows.append(low)
            highs.append(high)
        own.append((low, high))
    if scale == 'own' or not lows:
        return own
    return [(min(lows), max(highs))] * len(panels)


def last_block(view: View) -> str:
    return 'last block' if view.block == LAST else f'block {view.block}'


def default_view(explorer: Explorer, given: Sequence[str] = ()) -> View:
    """The models that were given. Without any, ours, softmax and PolaFormer's: trained where they
    are, else with random weights.
    """
    if given:
        return replace(View(), trained=tuple(given))
    names = list(explorer.models.sources)
    trained = [QUICK_START] if QUICK_START in names else []
    untrained = []
    for attention in ('LaplacianAttention', 'SoftmaxAttention', 'PolaAttention'):
        of_attention = [name for name in names if name.startswith(f'{attention} on ')]
        if of_attention:
            trained.append(of_attention[0])
        else:
            untrained.append(attention)
    return replace(View(), trained=tuple(trained), attention=tuple(untrained))
