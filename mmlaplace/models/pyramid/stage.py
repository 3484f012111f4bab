"""A stage of a pyramid, as data."""

from dataclasses import dataclass, field, fields
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch.nn as nn

from ..attentions.frame import Frame
from ..layers import PositionEmbedding, TransformerBlock
from ..layers.block import StageLayers
from .options import attention_class, takes, with_frame


def in_every_block(attn: dict, depth: int) -> List[Optional[dict]]:
    """One attention in all blocks."""
    return [attn] * depth


@dataclass(frozen=True)
class Stage:
    """The parts of one stage. A host is a function that returns a list of stages.

    Attributes:
        embed: Makes the tokens: ``embed(in_channels, embed_dims)`` is a module
            ``(B, C_in, H, W) -> (B, N, C), (H', W')``.
        stride: Factor by which ``embed`` reduces each side.
        attn: Config of the attention, or None for a stage without attentions.
        frame: Fields of :class:`Frame` that the host changes for any attention. Fields that the
            attention does not have are ignored.
        attn_in_blocks: The attention of each block: ``attn_in_blocks(attn, depth)`` is a list of
            ``depth`` configs, with None for a block without an attention. Default: ``attn`` in
            all.
        block: Arguments of the blocks, and their ``type``. It is called with the arguments of
            :class:`TransformerBlock` by name, without ``attn_cfg`` where there is no attention.
            Default: :class:`TransformerBlock` without further arguments.
        position: Arguments of :class:`PositionEmbedding`, which adds learned positions to the
            tokens, and a class token with ``cls_token=True``, which only the last stage can have.
            Another ``type`` is called with the channels, the sides of the map and ``drop_rate``.
            None (default) adds none.
        embed_norm: Whether ``embed`` has a norm of tokens, and so takes the backbone's
            ``norm_cfg``. Default: True.
        norm: Config of the norms in the blocks. Default: ``dict(type='LN', eps=1e-6)``.
        out_norm: Config of the norm of the returned map. None adds no norm. Default: as ``norm``.
        end: What the tokens pass behind the blocks: ``end(embed_dims)`` is a module
            ``(B, N, C') -> (B, N, C)``. It takes the backbone's ``norm_cfg`` if that is given. The
            next stage takes its output too. Default: None, nothing.

    Raises:
        ValueError: For an unknown field in ``frame``, or for ``norm_cfg`` in ``block``.

    Examples:
        >>> from functools import partial
        >>> from mmlaplace.models import Stage
        >>> from mmlaplace.models.layers import PatchEmbed
        >>> stage = Stage(partial(PatchEmbed, patch_size=4), 4, dict(type='PolaAttention'))
        >>> modules = stage.build(3, 64, 2, 4, (56, 56), [0.0, 0.1], 0.0, False, None, None)
        >>> list(modules), len(modules['blocks'])
        (['patch_embed', 'blocks'], 2)
    """

    embed: Callable[..., nn.Module]
    stride: int
    attn: Optional[dict]
    frame: dict = field(default_factory=dict)
    attn_in_blocks: Callable[[dict, int], List[Optional[dict]]] = in_every_block
    block: Dict[str, Any] = field(default_factory=dict)
    position: Optional[dict] = None
    embed_norm: bool = True
    norm: dict = field(default_factory=lambda: dict(type='LN', eps=1e-6))
    out_norm: Optional[dict] = field(default_factory=lambda: dict(type='LN', eps=1e-6))
    end: Optional[Callable[..., nn.Module]] = None

    def __post_init__(self) -> None:
        known = [field.name for field in fields(Frame)]
        unknown = set(self.frame) - set(known)
        if unknown:
            raise ValueError(f'a frame has no field {sorted(unknown)}; its fields are {known}')
        if 'norm_cfg' in self.block:
            raise ValueError(f'give norm={self.block["norm_cfg"]!r} to the stage, not to its block')

    @property
    def num_cls_tokens(self) -> int:
        """The number of class tokens, which is two with that of a distillation."""
        position = self.position or {}
        return sum(bool(position.get(name)) for name in ('cls_token', 'dist_token'))

    @property
    def num_prefix_tokens(self) -> int:
        """The number of tokens before those of the map, which are class tokens and registers."""
        return self.num_cls_tokens + (self.position or {}).get('num_registers', 0)

    def attn_cfgs(self, depth: int, **sizes: Any) -> List[Optional[dict]]:
        """The complete configs of the attentions in the blocks: the host's frame, then ``attn``."""
        if self.attn is None:
            return [None] * depth
        prefix = {}
        if self.num_prefix_tokens:
            prefix = dict(num_prefix_tokens=self.num_prefix_tokens)
        configs: List[Optional[dict]] = []
        for attn in self.attn_in_blocks(self.attn, depth):
            if attn is None:
                configs.append(None)
                continue
            cls = attention_class(attn['type'])
            if prefix and not takes(cls, 'num_prefix_tokens'):
                reason = getattr(cls, 'no_prefix_tokens', 'its class has no such option')
                raise ValueError(
                    f'the class token needs an attention that takes num_prefix_tokens, such as '
                    f'SoftmaxAttention, and {attn["type"]!r} does not: {reason}; set '
                    "with_cls_token=False, or keep the host's attention in this stage by a None in "
                    'a list of configs'
                )
            configs.append({**with_frame(attn, self.frame), **prefix, **sizes})
        return configs

    def build(
        self,
        in_channels: int,
        embed_dims: int,
        num_heads: int,
        ffn_ratio: float,
        resolution: Tuple[int, int],
        drop_path_rates: Sequence[float],
        drop_rate: float,
        with_cp: bool,
        norm_cfg: Optional[dict],
        act_cfg: Optional[dict],
    ) -> StageLayers:
        """The modules of the stage. Their ``norm`` is the stage's ``end``."""
        norm = {} if norm_cfg is None else dict(norm_cfg=norm_cfg)
        embed = self.embed(in_channels, embed_dims, **(norm if self.embed_norm else {}))
        position = None
        if self.position is not None:
            options = dict(self.position)
            kind = options.pop('type', PositionEmbedding)
            position = kind(embed_dims, resolution, drop_rate=drop_rate, **options)
        block = dict(
            self.block,
            ffn_ratio=ffn_ratio,
            drop_rate=drop_rate,
            with_cp=with_cp,
            norm_cfg=norm_cfg or self.norm,
        )
        make: Any = block.pop('type', TransformerBlock)
        if act_cfg is not None:
            block['ffn_cfg'] = dict(block.get('ffn_cfg', {}), act_cfg=act_cfg)
        sizes = dict(embed_dims=embed_dims, num_heads=num_heads, input_resolution=resolution)
        blocks = []
        for attn_cfg, rate in zip(self.attn_cfgs(len(drop_path_rates), **sizes), drop_path_rates):
            own = {} if attn_cfg is None else dict(attn_cfg=attn_cfg)
            blocks.append(make(embed_dims, drop_path_rate=rate, **own, **block))
        end = None if self.end is None else self.end(embed_dims, **norm)
        return StageLayers(embed, position, blocks, end)
