from typing import Any, Callable, Optional, Sequence, Set, Tuple

import torch
import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor

from mmlaplace.ops._checks import is_compiling, is_transforming
from mmlaplace.ops.precision import HALVES
from mmlaplace.ops.rotary import (
    ROPE_FORMS,
    of_channels,
    rotary_table,
    turn_channels,
    turn_complex,
)

from .build import build_token_norm
from .drawing import draw_normal_
from .feature_map import map_to_tokens, resize_map
from .tables import computed_once

WITH_COMPLEX_NUMBERS = ('cpu', 'cuda')  # not all other devices have products of them


def table_of_map(
    height: int,
    width: int,
    pairs: int,
    theta: float,
    form: str,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """The :func:`rotary_table` of a dtype, on a device."""
    return rotary_table(
        height, width, pairs, theta, form, torch.empty(0, dtype=dtype, device=device)
    )


def table_behind_prefix(num_prefix_tokens: int, *sizes: Any) -> Tensor:
    """The :func:`table_of_map`, behind tokens that do not turn: of cosine 1 and sine 0."""
    table = table_of_map(*sizes)
    still = table.new_zeros(2, table.shape[1], num_prefix_tokens)
    still[0] = 1
    return torch.cat([still, table], dim=2)


def factors_of_map(
    height: int,
    width: int,
    pairs: int,
    theta: float,
    form: str,
    dtype: torch.dtype,
    pairing: str,
    device: torch.device,
) -> Tuple[Tensor, Tensor]:
    """The factors of each channel. ``pairing`` is the form that tells which channels are a pair."""
    table = table_of_map(height, width, pairs, theta, form, dtype, device)
    return of_channels(table, pairing)


def turns_of_map(
    height: int,
    width: int,
    pairs: int,
    theta: float,
    form: str,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """The rotation of each pair of each token as a complex number, ``(N, 2 * pairs)``."""
    cos, sin = table_of_map(height, width, pairs, theta, form, dtype, device).transpose(1, 2)
    return torch.complex(cos.contiguous(), sin.contiguous())


class RotaryEmbedding2D(nn.Module):
    r"""Rotary position embedding over rows and columns.

    A pair of channels (a, b) of a head turns by an angle, to
    :math:`(a \cos - b \sin,\; a \sin + b \cos)`. Half of the pairs turn by the row, the others by
    the column. Pair p of the P pairs of an axis turns by
    :math:`\mathrm{position} \cdot \theta^{-p / P}`. With ``form='pairs'`` the power is
    :math:`\theta^{-p / (P - 1)}`. Positions are whole token steps, so a larger image continues
    them. With ``'centred'`` and ``'reference'`` they divide the side of any image alike.
    Channels after the largest multiple of 4 stay as they are.

    Args:
        head_dims: Channels d of a head.
        theta: Base :math:`\theta` of the wavelengths. Default: 100 where c and c + d/2 are a pair,
            as maps have tens of rows, not thousands (RoPE-ViT, arXiv 2403.13298), and 10000 where
            2c and 2c + 1 are one.
        form: Which two channels form a pair, and which position token i of the n of a side has.
            ``'half'`` (default): c and c + d/2, and i. ``'pairs'``: 2c and 2c + 1, and i, as in
            RALA, MALA and NaLaFormer. ``'centred'``: c and c + d/2, and
            :math:`2 \pi \, ((2 i + 1) / n - 1)`, as in DINOv3. ``'reference'``: 2c and 2c + 1, and
            :math:`16\, i / n`, as in EVA-02.

    Raises:
        ValueError: For an unknown form.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import RotaryEmbedding2D
        >>> RotaryEmbedding2D(32)(torch.randn(1, 2, 5 * 9, 32), hw_shape=(5, 9)).shape
        torch.Size([1, 2, 45, 32])
    """

    def __init__(self, head_dims: int, theta: Optional[float] = None, form: str = 'half') -> None:
        super().__init__()
        if form not in ROPE_FORMS:
            raise ValueError(f'form must be one of {tuple(ROPE_FORMS)}, got {form!r}')
        self.pairs = head_dims // 4
        self.form = form
        self.pairing = ROPE_FORMS[form]
        self.theta = theta or (100.0 if self.pairing == 'half' else 10000.0)

    def table(
        self, x: Tensor, hw_shape: Tuple[int, int], num_prefix_tokens: int = 0
    ) -> Optional[Tensor]:
        """Cosines and sines ``(2, 2 * pairs, N)`` for tokens like ``x``; None for no pairs.

        They are at least fp32. No buffer holds them: a model in half precision would round it.
        With ``num_prefix_tokens``, N counts that many tokens before the map, which do not turn.
        """
        if self.pairs == 0:
            return None
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        sizes = (*hw_shape, self.pairs, self.theta, self.form, dtype)
        if num_prefix_tokens:
            return computed_once(table_behind_prefix, num_prefix_tokens, *sizes, like=x)
        return computed_once(table_of_map, *sizes, like=x)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Turn ``(B, heads, N, d)``, ``N = H * W``; same shape and dtype."""
        if self.pairs == 0:
            return x
        wide = x.float() if x.dtype in HALVES else x
        sizes = (*hw_shape, self.pairs, self.theta, self.form, wide.dtype)
        # Complex numbers are quicker. Not all exporters and transforms of torch.func know them.
        in_graph = is_compiling() or torch.jit.is_tracing() or is_transforming()
        if self.pairing == 'half' or in_graph or x.device.type not in WITH_COMPLEX_NUMBERS:
            own, other = computed_once(factors_of_map, *sizes, self.pairing, like=x)
            turned = turn_channels(wide, own, other, self.pairing)
        else:
            turned = turn_complex(wide, computed_once(turns_of_map, *sizes, like=x))
        return turned.to(x.dtype)


class RotaryOfAllHeads(RotaryEmbedding2D):
    """Rotary positions over the channels of all heads together, as in MLLA and H-ViT³.

    Channels 2c and 2c + 1 form a pair, and pair p of the P = C/4 of an axis turns by
    :math:`10000^{-p / P}` of the position. The first half of the channels encodes rows, and with
    them the first half of the heads. The second half encodes columns.

    Args:
        embed_dims: Channels C of all heads.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import RotaryOfAllHeads
        >>> RotaryOfAllHeads(64)(torch.randn(1, 2, 5 * 9, 32), hw_shape=(5, 9)).shape
        torch.Size([1, 2, 45, 32])
    """

    def __init__(self, embed_dims: int) -> None:
        # Frequencies of the one form, pairs of the other.
        super().__init__(embed_dims, theta=10000.0, form='half')
        self.pairing = 'pairs'

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Turn ``(B, heads, N, d)``, ``N = H * W``; same shape and dtype."""
        together = x.transpose(1, 2).flatten(2).unsqueeze(1)  # (B, 1, N, C)
        turned = super().forward(together, hw_shape)
        return turned.view(x.shape[0], x.shape[2], *x.shape[1::2]).transpose(1, 2)


class PositionEmbedding(BaseModule):
    """Add a learned vector to each token of a map, and put a class token before them.

    Args:
        embed_dims: Channels C.
        resolution: Height and width of the token map at the training image size. For other maps
            the positions are resized, in the forward and when weights are loaded.
        cls_token: Whether there is a class token. It has a position of its own. Default: False.
        dist_token: Whether a second one follows it, as in distilled DeiT. Default: False.
        num_registers: Number of further tokens behind these, which have no positions. Default: 0.
        learned: Whether there are learned positions. Otherwise it puts tokens before those of the
            map, and the attentions have positions of their own. Default: True.
        drop_rate: Dropout rate of the sums. Default: 0.
        decay: Whether weight decay acts on the positions. It does in the authors' code of SOFT and
            PVT, but not in that of DeiT. The tokens themselves never decay. Default: True.
        resize: Function of a map ``(1, C, H, W)`` and ``(H', W')`` that resizes it. Default: None,
            :func:`resize_map`.
        norm_cfg: Config of a norm of the sums. Default: None, no norm.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import PositionEmbedding
        >>> position = PositionEmbedding(64, resolution=(14, 14), cls_token=True)
        >>> position(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 171, 64])
    """

    map: Optional[nn.Parameter]
    cls_token: Optional[nn.Parameter]
    dist_token: Optional[nn.Parameter]
    registers: Optional[nn.Parameter]

    def __init__(
        self,
        embed_dims: int,
        resolution: Tuple[int, int],
        cls_token: bool = False,
        drop_rate: float = 0.0,
        decay: bool = True,
        dist_token: bool = False,
        num_registers: int = 0,
        resize: Optional[Callable[[Tensor, Sequence[int]], Tensor]] = None,
        norm_cfg: Optional[dict] = None,
        learned: bool = True,
    ) -> None:
        super().__init__()
        if (dist_token or num_registers) and not cls_token:
            raise ValueError(
                f'dist_token={dist_token} and num_registers={num_registers} follow a class token; '
                'set cls_token=True'
            )
        self.decay, self.resize = decay, resize or resize_map
        self.map = nn.Parameter(torch.zeros(1, embed_dims, *resolution)) if learned else None
        for name, present in (('cls', cls_token), ('dist', dist_token)):
            for kind, needed in (('token', present), ('position', present and learned)):
                value = nn.Parameter(torch.zeros(1, 1, embed_dims)) if needed else None
                setattr(self, f'{name}_{kind}', value)
        self.registers = None
        if num_registers:
            self.registers = nn.Parameter(torch.zeros(1, num_registers, embed_dims))
        self.drop = nn.Dropout(drop_rate)
        for parameter in self.parameters():
            draw_normal_(parameter)
        self.norm: nn.Module = nn.Identity()
        if norm_cfg is not None:
            self.norm = build_token_norm(norm_cfg, embed_dims)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, T + N, C)``, with the T tokens of no place first."""
        if self.map is not None:
            x = x + map_to_tokens(self.resize(self.map, hw_shape))  # (B, N, C)
        if self.cls_token is not None:
            first = [_placed(self.cls_token, self.cls_position)]
            if self.dist_token is not None:
                first.append(_placed(self.dist_token, self.dist_position))
            if self.registers is not None:
                first.append(self.registers)
            x = torch.cat([*(y.expand(x.shape[0], -1, -1) for y in first), x], dim=1)
        return self.norm(self.drop(x))

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay."""
        tokens = {'cls_token', 'dist_token', 'registers'}
        return tokens if self.decay else {*tokens, 'map', 'cls_position', 'dist_position'}

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """The map of a checkpoint, resized to the size of this module."""
        if name != 'map' or self.map is None:
            return value
        return self.resize(value, self.map.shape[2:])


def _placed(token: Tensor, position: Optional[Tensor]) -> Tensor:
    """A token with its position, if it has one."""
    return token if position is None else token + position
