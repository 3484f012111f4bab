from typing import List, Optional, Sequence, Tuple, Union

from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.backend import ceil_div

from ..layers import shifted_window_mask
from ..layers.checks import check_counts
from ..layers.tables import computed_once
from ..layers.windows import windows_of
from .base import BaseAttention


@MODELS.register_module()
class WindowAttention(BaseAttention):
    """Any attention, computed inside windows of the map, as in Swin.

    A map whose sides are no multiples of the window gets zeros at the bottom and the right. If a
    side of the map is not longer than the window, the window shrinks to the shortest side. Without
    ``even_windows``, nothing is then shifted. So do Swin's classifiers. With ``pad_small_maps``,
    such a map is padded and shifted as any other, as in Swin's detectors. Shifted windows hold
    tokens of opposite borders. An attention that accepts a mask keeps these apart. Linear
    attentions mix them, as PolaFormer's and FLatten's do.

    Large windows can need much padding: windows of 56 pad 128 rows to 168. With ``even_windows``, a
    side of S tokens has the fewest windows that are not longer than ``window_size``, ⌈S /
    window_size⌉, all of the least length, here 3 of 43. So padding adds less than one row for each
    window. Height and width are divided separately. Each is shifted if it has several windows.
    Windows need not be square. A map that ``window_size`` divides has the same windows either way.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        window_size: Side of a window, in tokens. With ``even_windows`` it is the largest side.
            Default: 7.
        shifted: Whether windows are shifted by half of their side. Default: False.
        attn_cfg: Config of the attention inside. Default: Swin's, softmax with a relative bias.
        even_windows: Whether windows shrink to divide the map evenly. It suits an attention that
            does not depend on the side of a window, such as a linear one. A relative bias would be
            resized. Default: False, as in Swin. :class:`PolaFormerSwin` sets it where it has
            :class:`PolaAttention`.
        resize_windows: Whether a checkpoint's tables of other windows are resized, to train further
            with larger windows, as Swin's authors do at 384 x 384 pixels. Before this training, the
            outputs are wrong. Default: False, such a checkpoint is refused.
        pad_small_maps: Whether the window keeps its side on a map that is not longer. With
            ``even_windows`` it shrinks all the same. Default: False.

    Raises:
        ValueError: If ``window_size < 1``.

    Cost: NCw to mix; 4C² + h(2√w − 1)² weights.

    Published: Swin-T 81.3, Swin-S 83.0, Swin-B 83.5.

    Source: Swin Transformer (arXiv 2103.14030).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import WindowAttention
        >>> attention = WindowAttention(64, 2, (14, 14), window_size=7, shifted=True)
        >>> attention(torch.randn(1, 10 * 15, 64), hw_shape=(10, 15)).shape
        torch.Size([1, 150, 64])
    """

    no_prefix_tokens = 'its windows are of a map'

    default_attn_cfg = dict(type='SoftmaxAttention', relative_bias=True)
    tested_options = (
        dict(window_size=3, shifted=True),
        dict(window_size=2, shifted=True, attn_cfg=dict(type='PolaAttention')),
        dict(window_size=4, shifted=True, even_windows=True, attn_cfg=dict(type='PolaAttention')),
        dict(window_size=9, shifted=True, pad_small_maps=True),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        window_size: int = 7,
        shifted: bool = False,
        attn_cfg: Optional[dict] = None,
        even_windows: bool = False,
        resize_windows: bool = False,
        pad_small_maps: bool = False,
        init_cfg: Union[dict, List[dict], None] = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        check_counts(window_size=window_size)
        self.window_size = window_size
        self.shifted = shifted
        self.even_windows = even_windows
        self.resize_windows = resize_windows
        self.pad_small_maps = pad_small_maps
        sides, _ = self.window_and_shift(self.input_resolution)
        inner = attn_cfg or {}
        if 'type' not in inner:
            inner = dict(self.default_attn_cfg, **inner)
        self.attn = MODELS.build(
            dict(
                inner,
                embed_dims=embed_dims,
                num_heads=num_heads,
                input_resolution=sides,
            )
        )

    def window_and_shift(
        self, hw_shape: Tuple[int, int]
    ) -> Tuple[Tuple[int, int], Tuple[int, int]]:
        """Sides of the windows on a map ``(H, W)``, and how far they are shifted, in tokens."""
        longest = self.window_size
        if not self.even_windows:
            shrinks = not self.pad_small_maps
            side = min(longest, *hw_shape) if shrinks else longest
            fits = shrinks and min(hw_shape) <= longest  # one window
            shift = side // 2 if self.shifted and not fits else 0
            return (side, side), (shift, shift)
        height, width = (ceil_div(size, ceil_div(size, longest)) for size in hw_shape)
        down, right = (self.shifted and size > longest for size in hw_shape)
        return (height, width), (height // 2 if down else 0, width // 2 if right else 0)

    def window_tables(self) -> List[str]:
        """Names of the parameters that a checkpoint must have for the same windows.

        They have a value for each place or offset in a window. With ``even_windows`` there are
        none, as the side of a window follows from the map, and none with ``resize_windows``.
        """
        if self.even_windows or self.resize_windows:
            return []
        side = max(self.window_and_shift(self.input_resolution)[0])
        return [
            f'attn.{name}'
            for name, table in self.attn.named_parameters(recurse=False)
            if table.dim() == 4 and self.side_of_table(name, table.shape) == side
        ]

    def side_of_table(self, name: str, shape: Sequence[int]) -> int:
        """The side of the windows, in tokens, that a table of this shape is for."""
        longest = max(shape[2:])
        return (longest + 1) // 2 if name.endswith('relative_bias') else longest

    def forward(
        self, x: Tensor, hw_shape: Tuple[int, int], mask: Optional[Tensor] = None
    ) -> Tensor:
        self.check_token_map(x, hw_shape)
        if mask is not None:
            raise ValueError('WindowAttention makes its own mask; call it without one')
        side, shift = self.window_and_shift(hw_shape)  # (h, w) each
        windows = computed_once(windows_of, tuple(hw_shape), side, shift, like=x)
        options = {}
        if shift != (0, 0) and getattr(self.attn, 'accepts_mask', False):
            mask = computed_once(shifted_window_mask, tuple(hw_shape), side, shift, like=x)
            mask = mask.expand(x.shape[0], *mask.shape).flatten(0, 1)  # (B * windows, h * w, h * w)
            options = dict(mask=mask.unsqueeze(1))
        mixed = self.attn(windows.split(x), side, **options)  # (B * windows, h * w, C)
        return windows.join(mixed)
