from typing import Optional, Set, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from .feature_map import map_to_tokens

ROPE_FORMS = ('half', 'pairs')


class RotaryEmbedding2D(nn.Module):
    r"""Rotary position embedding over rows and columns.

    A pair of channels (a, b) of a head turns by an angle, to
    :math:`(a \cos - b \sin,\; a \sin + b \cos)`. Half of the pairs turn by the row, the others by
    the column. Pair p of the P pairs of an axis turns by
    :math:`\mathrm{position} \cdot \theta^{-p / P}`. With ``form='pairs'`` the power is
    :math:`\theta^{-p / (P - 1)}`. Positions are whole token steps, so a larger image continues
    them. Channels after the largest multiple of 4 stay as they are.

    Args:
        head_dims: Channels d of a head.
        theta: Base :math:`\theta` of the wavelengths. Default: 100, as maps have tens of rows, not
            thousands (RoPE-ViT, arXiv 2403.13298). With ``form='pairs'`` it is 10000.
        form: Which channels are a pair. ``'half'`` (default): c and c + d/2. ``'pairs'``: 2c and
            2c + 1, as in RALA, MALA and NaLaFormer.

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
            raise ValueError(f'form must be one of {ROPE_FORMS}, got {form!r}')
        self.pairs = head_dims // 4
        self.rotated_dims = 4 * self.pairs
        self.form = form
        self.theta = theta or (100.0 if form == 'half' else 10000.0)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Turn ``(B, heads, N, d)``, ``N = H * W``; same shape and dtype."""
        height, width = hw_shape
        with no_autocast(x.device):
            (turned,) = upcast(x[..., : self.rotated_dims])  # (B, heads, N, 4 * pairs)
            # No buffer: a model in half precision would round it.
            exponents = torch.arange(self.pairs, dtype=turned.dtype, device=x.device)
            last = self.pairs if self.form == 'half' else self.pairs - 1
            frequencies = self.theta ** (-exponents / max(last, 1))
            rows = torch.arange(height, device=x.device).repeat_interleave(width)
            columns = torch.arange(width, device=x.device).repeat(height)
            angles = torch.cat(
                [rows[:, None] * frequencies, columns[:, None] * frequencies], dim=-1
            )  # (N, 2 * pairs)
            cos, sin = angles.cos(), angles.sin()
            # Whole rows, the other channel of each pair beside: halves alone are slow to read.
            if self.form == 'half':
                cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
                other = turned.roll(self.rotated_dims // 2, dims=-1)
            else:
                cos = cos.repeat_interleave(2, dim=-1)
                sin = torch.stack([-sin, sin], dim=-1).flatten(-2)
                other = turned.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
            turned = torch.addcmul(turned * cos, other, sin).to(x.dtype)
            if self.rotated_dims == x.shape[-1]:
                return turned
            return torch.cat([turned, x[..., self.rotated_dims :]], dim=-1)


def resize_map(x: Tensor, hw_shape: Tuple[int, int], mode: str = 'bilinear') -> Tensor:
    """Interpolate a map ``(B, C, H, W)`` to another size.

    It is computed in at least fp32. A map that has that size is returned unchanged, and so is a
    tensor that is not 4-D.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import resize_map
        >>> resize_map(torch.randn(1, 64, 14, 14), (10, 17)).shape
        torch.Size([1, 64, 10, 17])
    """
    if x.dim() != 4 or tuple(x.shape[2:]) == tuple(hw_shape):
        return x
    resized = F.interpolate(upcast(x)[0], tuple(hw_shape), mode=mode, align_corners=False)
    return resized.to(x.dtype)


class PositionEmbedding(BaseModule):
    """Add a learned vector to each token of a map, and put a class token before them.

    Args:
        embed_dims: Channels C.
        resolution: Height and width of the token map at the training image size. For other maps
            the positions are resized bilinearly, in the forward and when weights are loaded.
        cls_token: Whether there is a class token. It has a position of its own. Default: False.
        drop_rate: Dropout rate of the sums. Default: 0.
        decay: Whether weight decay acts on the positions. It does in the authors' code of SOFT and
            PVT, but not in that of DeiT. The class token itself never decays. Default: True.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import PositionEmbedding
        >>> position = PositionEmbedding(64, resolution=(14, 14), cls_token=True)
        >>> position(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 171, 64])
    """

    def __init__(
        self,
        embed_dims: int,
        resolution: Tuple[int, int],
        cls_token: bool = False,
        drop_rate: float = 0.0,
        decay: bool = True,
    ) -> None:
        super().__init__()
        self.decay = decay
        self.map = nn.Parameter(torch.zeros(1, embed_dims, *resolution))
        if cls_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dims))
            self.cls_position = nn.Parameter(torch.zeros(1, 1, embed_dims))
        else:
            self.cls_token = None
        self.drop = nn.Dropout(drop_rate)
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)``, or ``(B, 1 + N, C)`` with the class token first."""
        x = x + map_to_tokens(resize_map(self.map, hw_shape))  # (B, N, C)
        if self.cls_token is not None:
            first = self.cls_token + self.cls_position
            x = torch.cat([first.expand(x.shape[0], -1, -1), x], dim=1)  # (B, 1 + N, C)
        return self.drop(x)

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters that are not to decay."""
        return {'cls_token'} if self.decay else {'map', 'cls_token', 'cls_position'}

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """The map of a checkpoint in the size of this one."""
        return resize_map(value, self.map.shape[2:]) if name == 'map' else value
