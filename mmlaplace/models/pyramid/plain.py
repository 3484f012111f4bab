import warnings
from functools import partial
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from torch import Tensor

from ..layers import feature_map, tokens_to_map
from ..layers.checks import check_counts
from .base import PyramidBackbone
from .options import attention_class, takes


def global_block_numbers(depth: int) -> Tuple[int, ...]:
    """The last block of each quarter, as in ViTDet: 2, 5, 8 and 11 of 12.

    Examples:
        >>> from mmlaplace.models.pyramid.plain import global_block_numbers
        >>> global_block_numbers(24)
        (5, 11, 17, 23)
    """
    return tuple(sorted({max(quarter * depth // 4, 1) - 1 for quarter in range(1, 5)}))


def windows_in_blocks(
    window_size: int, global_blocks: Optional[Sequence[int]]
) -> Callable[[dict, int], List[Optional[dict]]]:
    """As ``attn_in_blocks`` of a :class:`Stage`: windows in all blocks but a few.

    An attention without a ``window_size``, such as one of linear time, stays as it is.

    Args:
        window_size: Side of a window, in tokens.
        global_blocks: Numbers of the blocks without windows. None stands for
            :func:`global_block_numbers`.

    Raises:
        ValueError: For a size that is no positive number.
    """
    check_counts(window_size=window_size)
    return partial(_in_blocks, window_size, global_blocks)


def _in_blocks(
    window_size: int, global_blocks: Optional[Sequence[int]], attn: dict, depth: int
) -> List[Optional[dict]]:
    whole = global_block_numbers(depth) if global_blocks is None else tuple(global_blocks)
    unknown = [number for number in whole if number not in range(depth)]
    if unknown:
        raise ValueError(f'global_blocks must be blocks from 0 to {depth - 1}, got {unknown}')
    if not takes(attention_class(attn['type']), 'window_size'):
        return [attn] * depth
    windows = {'window_size': window_size, **attn}
    return [attn if number in whole else windows for number in range(depth)]


class PlainBackbone(PyramidBackbone):
    """A plain ViT: a single stage, whose maps all have the stride of a patch.

    Heads with several strides read it through a neck that makes a pyramid of it,
    :class:`~mmlaplace.models.plain_necks.SimpleFeaturePyramid` or
    :class:`~mmlaplace.models.plain_necks.ResizedPyramid`.

    Args:
        arch: As in :class:`PyramidBackbone`.
        out_blocks: Numbers of several blocks in rising order, the last of which is the last block.
            Their maps are returned, all of one size, each after the norm of the last map, for
            ``ResizedPyramid``, mmseg's ``Feature2Pyramid`` and others. Default: None, the map of
            the last block alone.
        **kwargs: As in :class:`PyramidBackbone`.

    Raises:
        ValueError: For other ``out_blocks``, or with ``out_type='cls_token'``, and for a
            ``window_size`` that reaches no block.
    """

    # The form of rotary positions without which there are none at all.
    only_positions: Optional[str] = None

    def __init__(
        self,
        arch: Union[str, dict, None] = None,
        *args: Any,
        out_blocks: Optional[Sequence[int]] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(arch, *args, **kwargs)
        (depth,) = self.depths
        self.out_blocks = self._parse_out_blocks(out_blocks, depth)
        blocks = self.stages[0].blocks
        kinds = sorted({type(block.attn).__name__ for block in blocks})
        window_size = kwargs.get('window_size')
        if window_size and not any(getattr(block.attn, 'window_size', 0) for block in blocks):
            raise ValueError(
                f'window_size={window_size} reaches no block: attentions are {", ".join(kinds)}, '
                f'and global_blocks is {kwargs.get("global_blocks")}; leave it out, or keep '
                'SoftmaxAttention in a block that is not global'
            )
        forms = {getattr(getattr(block.attn, 'rotary', None), 'form', None) for block in blocks}
        if self.only_positions and forms != {self.only_positions}:
            warnings.warn(
                f'{type(self).__name__} has no positions but the rotary ones of its attentions, of '
                f'the form {self.only_positions!r}, and some of {", ".join(kinds)} have none of '
                'this form: there, tokens may have no positions',
                stacklevel=2,
            )

    def _parse_out_blocks(self, blocks: Optional[Sequence[int]], depth: int) -> Tuple[int, ...]:
        if blocks is None:
            return ()
        is_list = isinstance(blocks, (list, tuple, range)) and all(
            isinstance(number, int) for number in blocks
        )
        rising = is_list and list(blocks) == sorted({*blocks})
        if not rising or not blocks or blocks[0] < 0 or blocks[-1] != depth - 1:
            raise ValueError(
                f'out_blocks must be blocks in rising order, the last of them {depth - 1}, the '
                f'last block, such as {global_block_numbers(depth)}, got {blocks!r}'
            )
        if self.out_type != 'featmap':
            raise ValueError(
                f'out_blocks={tuple(blocks)} are of maps, got out_type={self.out_type!r}; set '
                "out_type='featmap'"
            )
        return tuple(blocks)

    @property
    def out_channels(self) -> Tuple[int, ...]:
        """As in :class:`PyramidBackbone`, of each of ``out_blocks``."""
        return super().out_channels * max(1, len(self.out_blocks))

    def map_sides(self, side: int) -> Tuple[int, ...]:
        return super().map_sides(side) * max(1, len(self.out_blocks))

    def _forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Images to the last map, or to the maps of ``out_blocks``."""
        if not self.out_blocks:
            return super()._forward(x)
        self.check_images(x)
        memory_format = feature_map.memory_format_of(x)
        (stage,) = self.stages
        norm = getattr(self, 'norm0', None)
        _, hw_shape, *tokens = stage(x, self.out_blocks)
        outs = []
        for out in tokens:  # (B, T + N, C)
            out = out if norm is None else norm(out)
            out = tokens_to_map(out[:, self.cls_tokens[0] :], hw_shape)  # (B, C, H, W)
            outs.append(out.contiguous(memory_format=memory_format))
        return tuple(outs)
