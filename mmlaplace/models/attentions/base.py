from abc import abstractmethod
from dataclasses import fields, replace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Type, Union

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor

from mmlaplace.ops.backend import ceil_div

from ..known_options import KnownOptions
from ..layers import (
    DepthwiseConv,
    PatchEmbed,
    RotaryEmbedding2D,
    map_to_tokens,
    resize_map,
    tokens_to_map,
)
from ..layers.drawing import draw_normal_
from .frame import QKV_FORMS, Frame


class BaseAttention(KnownOptions, BaseModule):
    """The contract of every attention: mix the tokens of a map, whatever its size.

    ``forward(x: (B, N, C), hw_shape: (H, W), mask=None) -> (B, N, C)`` with ``N = H * W``, for any
    H and W. Subclasses are registered in ``mmengine.registry.MODELS`` and take at least the
    arguments below, so that every host can build every attention.

    Args:
        embed_dims: Channels C.
        num_heads: Heads; must divide ``embed_dims``.
        input_resolution: Height and width of the token map at the training image size, for
            parameters that are initialised or stored for that size. The forward accepts other
            sizes.
        init_cfg: As in mmengine. Default: none.
        num_prefix_tokens: Tokens before those of the map, such as a class token and registers. The
            host sets it. Only classes with ``no_prefix_tokens = ''`` have this option. Default: 0.

    Attributes:
        accepts_mask: Whether the forward takes a boolean ``mask`` of the keys that each query
            sees, broadcastable to (B, heads, N, n) for n keys.
        mixes_tokens: Whether each output channel is a weighted sum of the same channel of the
            values. An attention map can show these weights.
        tested_options: Options under which the class computes by another path. The contract tests
            run each of them.
        not_promised: Points of the contract, which ``python -m mmlaplace compare`` checks, that
            the class does not promise, each with the reason: ``dict(linear='each query reads each
            key')``.
        no_multihead: Why :class:`LinearMultiheadAttention` cannot have the class's mixing rule, or
            ``''`` if it can: ``'its stripes are rows and columns of a map'``.
        no_prefix_tokens: Why the class takes no class token and no registers, which have no place
            on a map, or ``''`` if it does.
        same_tokens: Why keys must be of the same tokens as the queries, or ``''``.
        mixes_queries: Whether an output depends on other queries than its own.
        parts_in_fp32: Names of the submodules that compute in fp32 under any autocast.

    Raises:
        TypeError: For an unknown option. The message names the known options.
        ValueError: If ``num_heads`` does not divide ``embed_dims``, or for ``num_prefix_tokens``
            that is no integer of at least 0.
    """

    accepts_mask = False
    mixes_tokens = True
    tested_options: Tuple[dict, ...] = ()
    not_promised: Dict[str, str] = {}
    no_multihead = 'it has one input, and no queries, keys and values of a caller'
    no_prefix_tokens = "its class does not set no_prefix_tokens = ''"
    same_tokens = ''
    mixes_queries = False
    parts_in_fp32: Tuple[str, ...] = ()

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        init_cfg: Union[dict, List[dict], None] = None,
        num_prefix_tokens: int = 0,
    ) -> None:
        super().__init__(init_cfg)
        if num_heads < 1 or embed_dims % num_heads:
            raise ValueError(
                f'embed_dims ({embed_dims}) must be divisible by num_heads ({num_heads})'
            )
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.head_dims = embed_dims // num_heads
        if not isinstance(input_resolution, (list, tuple)) or len(input_resolution) != 2:
            raise ValueError(
                f'input_resolution must be (H, W), such as (14, 14), got {input_resolution!r}'
            )
        height, width = input_resolution
        self.input_resolution = height, width
        if type(num_prefix_tokens) is not int or num_prefix_tokens < 0:
            raise ValueError(
                f'num_prefix_tokens must be an integer of at least 0, got {num_prefix_tokens!r}'
            )
        self.num_prefix_tokens = num_prefix_tokens

    @classmethod
    def known_options(cls) -> List[str]:
        """As in the base, with ``num_prefix_tokens`` where the class takes such tokens."""
        names = super().known_options()
        return [name for name in names if name != 'num_prefix_tokens' or not cls.no_prefix_tokens]

    @abstractmethod
    def forward(
        self, x: Tensor, hw_shape: Tuple[int, int], mask: Optional[Tensor] = None
    ) -> Tensor:
        """Mix tokens ``(B, N, C)`` of a map ``(H, W)`` with ``N = H * W``, behind prefix tokens."""

    def check_token_map(self, x: Tensor, hw_shape: Tuple[int, int]) -> None:
        """Raise a ValueError unless ``x`` is ``(B, num_prefix_tokens + H * W, C)``."""
        height, width = hw_shape
        tokens = height * width + self.num_prefix_tokens
        if x.dim() != 3 or x.shape[1] != tokens or x.shape[2] != self.embed_dims:
            prefix = f'{self.num_prefix_tokens} + ' if self.num_prefix_tokens else ''
            raise ValueError(
                f'{type(self).__name__} expects tokens (B, {prefix}H*W, C) = (B, {tokens}, '
                f'{self.embed_dims}) for hw_shape {tuple(hw_shape)}, got {tuple(x.shape)}'
            )

    def check_mask(self, mask: Optional[Tensor]) -> None:
        """Raise a ValueError for a mask if the attention takes none."""
        if mask is not None and not self.accepts_mask:
            raise ValueError(f'{type(self).__name__} takes no mask; call it without one')


class Projected(NamedTuple):
    """The projections of the input of a :class:`QKVAttention`; n is the number of keys.

    Attributes:
        q: Queries ``(B, N, C)``.
        k: Keys ``(B, n, C)``. Where the frame shares them, ``k is q``.
        v: Values ``(B, n, C)``.
        gate: Gate ``(B, N, C)`` that multiplies the output, or None.
        beside: Channels ``(B, N, c)`` that the last linear takes behind the mixed values, or None.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Optional[Tensor]
    beside: Optional[Tensor] = None


class Dims(NamedTuple):
    """Channels in a :class:`QKVAttention`. All are C unless the subclass sets others.

    Attributes:
        key: Channels of the queries, and of the keys, over all heads.
        value: Channels of the values over all heads. The gate and the local branch have as many.
        out: Channels of the output.
    """

    key: int
    value: int
    out: int


class QKVAttention(BaseAttention):
    """An attention with a declared :class:`Frame`, whose mixing rule a subclass writes.

    ``out = proj((merge(mix(q, k, v)) + lepe(v)) * gate)``. The forward's steps are methods:
    :meth:`project`, :meth:`heads`, :meth:`mix`, :meth:`local_branch`, :meth:`apply_gate` and
    :meth:`project_out`. A subclass declares its ``frame`` and overrides the steps in which its
    paper differs.

    Prefix tokens, such as a class token and registers, come before the tokens of the map. To the
    mixing rule, they are queries and keys like the others: its sums run over all tokens. All that
    needs a place leaves them out. Rotary positions do not turn them, also where the mixing rule
    turns features. They have no key positions, a spatial reduction keeps them as they are, and
    convolutions neither read them nor add to them. A mixing rule that takes tokens of a map apart,
    such as for landmarks, leaves out the first ``self.num_prefix_tokens``. With
    ``no_prefix_tokens = ''``, a class declares that its rule allows this.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`BaseAttention`.
        **frame: Fields of :class:`Frame` that differ from those of the class. A subclass whose
            queries, values or output have other channels than C gives ``dims`` too, a
            :class:`Dims`. ``num_heads`` must then divide these.

    Raises:
        ValueError: If ``num_heads`` does not divide the channels, and for ``dims`` that the frame
            excludes.
    """

    frame = Frame()
    lepe_type: Type[DepthwiseConv] = DepthwiseConv  # of the convolution of V
    kwargs_options = tuple(field.name for field in fields(Frame))
    no_multihead = ''
    rotates_features = False
    rotates_in_mix = False

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        init_cfg: Union[dict, List[dict], None] = None,
        num_prefix_tokens: int = 0,
        **frame: Any,
    ) -> None:
        dims = frame.pop('dims', None)  # no option of users, so it is not in the signature
        # Where heads have a width of their own, they need not divide C.
        dividing = num_heads if dims is None else 1
        super().__init__(embed_dims, dividing, input_resolution, init_cfg, num_prefix_tokens)
        own = replace(type(self).frame, **frame)
        self.frame = own
        dims = dims or Dims(embed_dims, embed_dims, embed_dims)
        self.dims = dims
        self.check_dims(num_heads)
        self.num_heads = num_heads
        self.head_dims = dims.key // num_heads
        if own.rope_on == 'features' and not self.rotates_features:
            raise ValueError(
                f"rope_on='features' is not possible in {type(self).__name__}; take "
                "rope_on='query_key'"
            )
        # Keys and values of another map cannot share a linear with the queries.
        form = 'q_kv' if own.sr_ratio > 1 else own.qkv
        of_tokens, of_map = QKV_FORMS[form]
        channels = dict(q=dims.key, k=dims.key, v=dims.value)
        self.parts = [channels[part] for part in of_tokens]
        if own.gate:
            self.parts.append(dims.value)
        self.qkv = nn.Linear(embed_dims, sum(self.parts), own.qkv_bias)
        self.kv = None
        if of_map:
            self.kv = nn.Linear(embed_dims, dims.key + dims.value, own.qkv_bias)
        self.sr = None
        if own.sr_ratio > 1:
            self.sr = PatchEmbed(embed_dims, embed_dims, own.sr_ratio)
        self.key_positions = None
        if own.key_positions:
            table = torch.zeros(1, dims.key, *self.kv_shape(self.input_resolution))
            self.key_positions = nn.Parameter(draw_normal_(table))
        self.rotary = None
        if own.rope:
            self.rotary = RotaryEmbedding2D(self.head_dims, form=own.rope_form)
        self.lepe: Optional[nn.Module] = None
        if own.lepe_kernel:
            self.lepe = self.lepe_type(
                dims.value, own.lepe_kernel, num_heads, own.lepe_filters, own.lepe_bias
            )
        self.second_lepe = None
        if own.second_lepe_kernel:
            self.second_lepe = DepthwiseConv(dims.value, own.second_lepe_kernel)
        self.proj = nn.Linear(dims.value, dims.out) if own.proj else nn.Identity()
        self.proj_drop = nn.Dropout(own.proj_drop)

    def check_dims(self, num_heads: int) -> None:
        """Raise a ValueError for channels that heads do not divide, or that the frame excludes."""
        dims, embed_dims = self.dims, self.embed_dims
        for name, channels in (('key_dims', dims.key), ('value_dims', dims.value)):
            name = 'embed_dims' if channels == embed_dims else name
            if num_heads < 1 or channels < 1 or channels % num_heads:
                raise ValueError(
                    f'{name} ({channels}) must be positive and divisible by num_heads ({num_heads})'
                )
        if self.frame.qkv == 'qk' and dims.value != embed_dims:
            raise ValueError(
                f"qkv='qk' takes the input's {embed_dims} channels as values, which must have "
                f"{dims.value} channels here; take another form, such as qkv='qkv'"
            )
        if not self.frame.proj and dims.value != dims.out:
            raise ValueError(
                f'proj=False gives an output with the {dims.value} channels of the values, but it '
                f'must have {dims.out}; set proj=True'
            )

    def kv_shape(self, hw_shape: Tuple[int, int]) -> Tuple[int, int]:
        """Height and width of the map of keys and values, for queries on a map ``(H, W)``."""
        height, width = hw_shape
        ratio = self.frame.sr_ratio
        return (height, width) if ratio == 1 else (ceil_div(height, ratio), ceil_div(width, ratio))

    def project(self, x: Tensor, hw_shape: Tuple[int, int]) -> Projected:
        """Tokens ``(B, N, C)`` to queries, keys, values and the gate."""
        source, prefix = x, self.num_prefix_tokens
        if self.sr is not None:
            source, _ = self.sr(tokens_to_map(x[:, prefix:] if prefix else x, hw_shape))
            if prefix:
                source = torch.cat([x[:, :prefix], source], dim=1)
        parts = list(self.qkv(x).split(self.parts, dim=-1))
        gate = parts.pop() if self.frame.gate else None
        if self.kv is not None:
            parts += self.kv(source).split([self.dims.key, self.dims.value], dim=-1)
        elif self.frame.qkv == 'qk':
            parts.append(x.to(parts[0].dtype))  # autocast makes queries and keys halves
        elif self.frame.qkv == 'shared_qk':
            parts.insert(0, parts[0])
        q, k, v = parts
        if self.key_positions is not None:
            positions = map_to_tokens(resize_map(self.key_positions, self.kv_shape(hw_shape)))
            if prefix:
                positions = self.after_prefix(positions)
            k = k + positions.to(k.dtype)
        return Projected(q, k, v, gate)

    def heads(self, projected: Projected, hw_shape: Tuple[int, int]) -> Tuple[Tensor, ...]:
        """Queries, keys and values by head, ``(B, heads, N or n, d)``, with rotary positions.

        With ``rotates_in_mix``, the mixing rule applies ``self.rotary`` to queries and keys
        instead. Prefix tokens have no place on the map, and are not rotated.
        """
        heads = []
        value_dims = self.dims.value // self.num_heads
        for x, dims in zip(projected[:3], (self.head_dims, self.head_dims, value_dims)):
            # Not by unflatten, after which the TorchScript exporter takes N for a constant.
            heads.append(x.view(*x.shape[:2], self.num_heads, dims).transpose(1, 2))
        q, k, v = heads
        rotary = None
        if self.frame.rope_on == 'query_key' and not self.rotates_in_mix:
            rotary = self.rotary
        shared = projected.k is projected.q
        if rotary is None:
            return q, q if shared else k, v
        turn: Callable = self.turn_behind_prefix if self.num_prefix_tokens else rotary
        q = turn(q, hw_shape)
        return q, q if shared else turn(k, hw_shape), v

    def turn_behind_prefix(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Tokens ``(B, heads, N, d)`` with rotary positions, behind prefix tokens without any."""
        assert self.rotary is not None
        prefix = self.num_prefix_tokens
        return torch.cat([x[:, :, :prefix], self.rotary(x[:, :, prefix:], hw_shape)], dim=2)

    def turn_features(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Features ``(B, heads, N, d)`` with rotary positions, if the frame has them on features.

        A mixing rule calls it. Without such positions, features are returned as they are.
        """
        if self.rotary is None or self.frame.rope_on != 'features':
            return x
        if self.num_prefix_tokens:
            return self.turn_behind_prefix(x, hw_shape)
        return self.rotary(x, hw_shape)

    @abstractmethod
    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Mix values ``(B, heads, n, d)`` by queries ``(B, heads, N, d)`` and n keys.

        ``hw_shape`` is the map of the queries; that of the keys is ``self.kv_shape(hw_shape)``.
        It is None for tokens without a map, in :class:`LinearMultiheadAttention`.
        If ``accepts_mask`` is true, the method takes a ``mask`` too. Returns ``(B, heads, N, d)``.
        """

    def local_branch(self, v: Tensor, x: Tensor, hw_shape: Tuple[int, int]) -> Optional[Tensor]:
        """The local branch ``(B, N, C)`` that is added to the mixed values of the map, or None.

        The values ``v`` are of the tokens of the map, while ``x`` has prefix tokens too. Values of
        a reduced map are first interpolated linearly along the tokens, as in the authors' code of
        FLatten and PolaFormer.
        """
        if self.lepe is None:
            return None
        if self.sr is not None:
            prefix = self.num_prefix_tokens
            tokens = x.shape[1] - prefix if prefix else x.shape[1]  # a graph would subtract zero
            v = F.interpolate(v.transpose(1, 2), tokens, mode='linear').transpose(1, 2)
        return self.lepe(v, hw_shape)

    def of_map(self, tokens: Tensor) -> Tensor:
        """Tokens ``(..., p + N, d)`` without the p prefix tokens, ``(..., N, d)``."""
        prefix = self.num_prefix_tokens
        return tokens[..., prefix:, :] if prefix else tokens

    def after_prefix(self, tokens: Tensor) -> Tensor:
        """Tokens of the map ``(B, N, C)``, after zeros in place of the prefix tokens."""
        prefix = self.num_prefix_tokens
        return F.pad(tokens, (0, 0, prefix, 0)) if prefix else tokens  # without prefix, a copy

    def local_of_all(self, local: Tensor, v: Tensor) -> Tensor:
        """The local branch of all tokens, which is zero for prefix tokens.

        Of the map it is ``local``. The values ``v`` are of all tokens.
        """
        return F.pad(local, (0, 0, self.num_prefix_tokens, 0))

    def apply_gate(self, out: Tensor, gate: Tensor) -> Tensor:
        """The output ``(B, N, C)`` times the gate."""
        return out * gate

    def project_out(self, out: Tensor, projected: Projected) -> Tensor:
        """The last linear, and its dropout."""
        if projected.beside is not None:
            out = torch.cat([out, projected.beside], dim=-1)
        return self.proj_drop(self.proj(out))

    def forward(
        self,
        x: Tensor,
        hw_shape: Tuple[int, int],
        mask: Optional[Tensor] = None,
        source: Optional[Tensor] = None,
    ) -> Tensor:
        """Mix tokens ``(B, N, C)``. ``source`` has other ones, ``(B, N, C)``, for the local branch.

        Default: the same.
        """
        self.check_token_map(x, hw_shape)
        if mask is not None and not self.accepts_mask:
            self.check_mask(mask)
        projected = self.project(x, hw_shape)  # q, gate: (B, N, C); k, v: (B, n, C)
        q, k, v = self.heads(projected, hw_shape)  # (B, heads, N or n, d)
        options = {} if mask is None else dict(mask=mask)
        out = self.mix(q, k, v, hw_shape, **options).transpose(1, 2).flatten(2)  # (B, N, C)
        prefix = self.num_prefix_tokens
        of_map = projected.v[:, prefix:] if prefix else projected.v
        local = self.local_branch(of_map, x if source is None else source, hw_shape)
        if local is not None and prefix:
            local = self.local_of_all(local, projected.v)
        out = out if local is None else out + local
        if self.second_lepe is not None:
            out = out + self.after_prefix(self.second_lepe(of_map, hw_shape))
        out = out if projected.gate is None else self.apply_gate(out, projected.gate)
        return self.project_out(out, projected)

    def split_heads(self, x: Tensor, head_dims: Optional[int] = None) -> Tensor:
        """``(B, N, C) -> (B, heads, N, d)``. d is ``head_dims``, by default that of the queries."""
        # Not by unflatten, after which the TorchScript exporter takes N for a constant.
        head_dims = head_dims or self.head_dims
        return x.view(*x.shape[:2], self.num_heads, head_dims).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:
        """``(B, heads, N, d) -> (B, N, C)``."""
        return x.transpose(1, 2).flatten(2)

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """The key positions of a checkpoint, resized to the size of this module."""
        if name != 'key_positions' or self.key_positions is None:
            return value
        return resize_map(value, self.key_positions.shape[2:])
