"""A stage of a pyramid, as data."""

from dataclasses import dataclass, field, fields
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch.nn as nn
from mmengine.model import ModuleDict, ModuleList

from ..attentions.frame import Frame
from ..layers import PositionEmbedding, TransformerBlock
from ..layers.build import build_token_norm
from .options import attention_class, takes, with_frame


@dataclass(frozen=True)
class Stage:
    """The parts of one stage. A host is a function that returns a list of stages.

    Attributes:
        embed: Makes the tokens: ``embed(in_channels, embed_dims)`` is a module
            ``(B, C_in, H, W) -> (B, N, C), (H', W')``.
        stride: Factor by which ``embed`` reduces each side.
        attn: Config of the attention.
        frame: Fields of :class:`Frame` that the host changes for any attention. Fields that the
            attention does not have are ignored.
        alternate: Options of ``attn`` in every second block.
        position: Arguments of :class:`PositionEmbedding`, which adds learned positions to the
            tokens, or of another class, its ``type``. None (default) adds none.
        cls_token: Whether a class token goes before the tokens. Needs ``position``. Only the last
            stage can have one. Default: False.
        embed_norm: Whether ``embed`` has a norm of tokens, and so takes the backbone's
            ``norm_cfg``. Default: True.
        norm: Config of the norms in the blocks. Default: ``dict(type='LN', eps=1e-6)``.
        out_norm: Config of the norm of the returned map. None adds no norm. Default: as ``norm``.
        width: Channels of the tokens of the blocks, in units of the stage's. Default: 1.
        end: Makes what gives the tokens behind the blocks the stage's channels again:
            ``end(channels, embed_dims)`` is a module ``(B, N, channels) -> (B, N, C)``, which takes
            the backbone's ``norm_cfg`` if that is given. Default: None, nothing.
        end_norm: Whether the stage ends with a norm of ``norm``, whose output the next stage takes
            too, as in the authors' PVTv2. Default: False.
        first_blocks: How many blocks have ``attn``. The others have the attention of ``later``.
            Default: all.
        later: A stage, whose attention the other blocks have. Default: None.
        block: Further arguments of ``block_class``. Default: none.
        block_class: The block, which takes the arguments of :class:`TransformerBlock` and is called
            like it, ``block(x, hw_shape)``. Default: :class:`TransformerBlock`.
        attn_blocks: How many of the last blocks are of ``block_class`` and have an attention. Those
            before are of ``local_class``. 0 is a stage without attentions. Default: None, all.
        local_class: The block without an attention, which takes the same arguments. Default: None.

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
    attn: dict
    frame: dict = field(default_factory=dict)
    alternate: dict = field(default_factory=dict)
    position: Optional[dict] = None
    cls_token: bool = False
    embed_norm: bool = True
    norm: dict = field(default_factory=lambda: dict(type='LN', eps=1e-6))
    out_norm: Optional[dict] = field(default_factory=lambda: dict(type='LN', eps=1e-6))
    width: float = 1
    end: Optional[Callable[..., nn.Module]] = None
    end_norm: bool = False
    first_blocks: Optional[int] = None
    later: Optional['Stage'] = None
    block: Dict[str, Any] = field(default_factory=dict)
    block_class: Callable[..., nn.Module] = TransformerBlock
    attn_blocks: Optional[int] = None
    local_class: Optional[Callable[..., nn.Module]] = None

    def __post_init__(self) -> None:
        known = [field.name for field in fields(Frame)]
        unknown = set(self.frame) - set(known)
        if unknown:
            raise ValueError(f'a frame has no field {sorted(unknown)}; its fields are {known}')
        if self.cls_token and self.position is None:
            raise ValueError('a class token needs position embeddings; set position=dict(...)')
        if 'norm_cfg' in self.block:
            raise ValueError(f'give norm={self.block["norm_cfg"]!r} to the stage, not to its block')

    def attn_cfg(self, block: int, **sizes: Any) -> dict:
        """The complete config of the attention in a block: the host's frame, then the stage's."""
        if self.first_blocks is not None and self.later and block >= self.first_blocks:
            return self.later.attn_cfg(block, **sizes)
        prefix = dict(num_prefix_tokens=1) if self.cls_token else {}
        if prefix and not takes(attention_class(self.attn['type']), 'num_prefix_tokens'):
            raise ValueError(
                f'the class token needs an attention that takes num_prefix_tokens, such as '
                f'SoftmaxAttention, got {self.attn["type"]!r}; set with_cls_token=False, or keep '
                "the host's attention in this stage by a None in a list of configs"
            )
        alternate = self.alternate if block % 2 else {}
        return dict(with_frame(self), **{**alternate, **prefix, **sizes})

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
    ) -> ModuleDict:
        """The modules ``patch_embed``, ``position`` and ``norm`` (if any), and ``blocks``.

        The ``norm`` is what ends the stage.
        """
        # mmengine's containers, as init_weights goes down through no others.
        stage = ModuleDict()
        norm = {} if norm_cfg is None else dict(norm_cfg=norm_cfg)
        embed = self.embed(in_channels, embed_dims, **(norm if self.embed_norm else {}))
        stage['patch_embed'] = embed
        channels = int(self.width * embed_dims)
        if self.position is not None:
            options = dict(self.position)
            kind = options.pop('type', PositionEmbedding)
            stage['position'] = kind(channels, resolution, self.cls_token, drop_rate, **options)
        block = dict(self.block, norm_cfg=norm_cfg or self.norm)
        if act_cfg is not None:
            block['ffn_cfg'] = dict(block.get('ffn_cfg', {}), act_cfg=act_cfg)
        sizes = dict(embed_dims=channels, num_heads=num_heads, input_resolution=resolution)
        local = 0 if self.attn_blocks is None else len(drop_path_rates) - self.attn_blocks
        stage['blocks'] = ModuleList()
        for j, drop_path_rate in enumerate(drop_path_rates, -local):  # from 0 with attentions
            make: Any = self.block_class if j >= 0 else self.local_class
            attn_cfg = self.attn_cfg(max(j, 0), **sizes)
            stage['blocks'].append(
                make(channels, attn_cfg, ffn_ratio, drop_rate, drop_path_rate, with_cp, **block)
            )
        if self.end is not None:
            stage['norm'] = self.end(channels, embed_dims, **norm)
        if self.end_norm:
            stage['norm'] = build_token_norm(norm_cfg or self.norm, embed_dims)
        return stage
