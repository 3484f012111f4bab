"""The two-layer model of Long Range Arena, without its head."""

from typing import Any, List, Optional, Tuple, Union

import torch
import torch.nn as nn
from mmengine.model import BaseModule, ModuleList
from mmengine.registry import MODELS
from torch import Tensor

from ...models.layers.block import TransformerBlock
from ...models.layers.build import build_token_norm
from ...models.layers.padding import equal_lengths
from ...models.pyramid.options import attention_class, takes

PADDINGS = ('cut', 'mask', 'keep')
POOLS = ('mean', 'padded_mean')
# Of sines and cosines of pixels: from the shortest wavelength to the longest.
WAVELENGTHS = 32.0


class SequenceBlock(TransformerBlock):
    """A pre-norm block whose attention gets the length of each sequence.

    Args:
        embed_dims, attn_cfg: As in :class:`TransformerBlock`.
        padding: As in :class:`SequenceEncoder`. Default: ``'cut'``.
        **options: As in :class:`TransformerBlock`, such as ``ffn_ratio``.
    """

    def __init__(
        self, embed_dims: int, attn_cfg: dict, padding: str = 'cut', **options: Any
    ) -> None:
        super().__init__(embed_dims, attn_cfg, **options)
        self.padding = padding
        if padding == 'mask':
            self._check_mask()

    def _check_mask(self) -> None:
        attention = self.attn
        reasons = []
        if not attention.accepts_mask:
            reasons.append('takes no mask')
        frame = getattr(attention, 'frame', None)
        if frame is not None and frame.lepe_kernel:
            reasons.append(f'has a convolution of padded values (lepe_kernel={frame.lepe_kernel})')
        if frame is not None and frame.key_positions:
            reasons.append('stretches key_positions over the padding')
        if getattr(attention, 'relative_bias', None) is not None:
            reasons.append('stretches its relative_bias over the padding')
        if reasons:
            raise ValueError(
                f"padding='mask' cannot be used, because {type(attention).__name__} "
                f"{' and '.join(reasons)}; take padding='cut', which works with every attention"
            )

    def _mixed(self, x: Tensor, lengths: Optional[Tensor]) -> Tensor:
        """Apply the attention to right-padded ``(R, L, C)``. Padding gives zeros, or is unused."""
        length = x.shape[1]
        if lengths is None:
            return self.attn(x, (length, 1))
        if self.padding == 'mask':
            seen = torch.arange(length, device=x.device) < lengths[:, None]
            return self.attn(x, (length, 1), mask=seen[:, None, None, :])
        out: Any = None
        for size, rows in equal_lengths(lengths):
            mixed = self.attn(x[rows, :size], (size, 1))
            out = torch.zeros_like(x, dtype=mixed.dtype) if out is None else out
            out[rows, :size] = mixed
        return out

    # Lengths take the place of the shape of a map.
    def _forward(  # type: ignore[override]
        self, x: Tensor, lengths: Optional[Tensor]
    ) -> Tensor:
        x = x + self._mixed(self.norm1(x), lengths)
        return x + self.ffn(self.norm2(x), (x.shape[1], 1))


@MODELS.register_module()
class SequenceEncoder(BaseModule):
    r"""An encoder from ids to one vector for each sample, with any registered attention.

    The encoder embeds the ids and adds learned positions. Blocks, a norm and the mean over the
    tokens follow. If a sample has two sequences, both go through the same encoder. Their means a
    and b are joined to :math:`[a, b, a \odot b, a - b]`. The attention sees a sequence as a map of
    N x 1 tokens. Landmarks lie along it. Only the middle column of a two-dimensional convolution
    acts.

    Padding may be anywhere. Real tokens are moved together before the first block, so the blocks
    take no time for padding that all sequences of a batch have.

    Args:
        num_embeddings: Rows of the embedding. Ids are from 0 to ``num_embeddings - 1``.
        max_length: Tokens of the longest sequence, which is the number of positions.
        attn_cfg: Config of the attention, such as ``dict(type='PolaAttention')``, without sizes.
            The type is a registered name or a class.
        embed_dims: Channels C. Default: 64.
        depth: Blocks. Default: 2.
        num_heads: Heads of the attention. Default: 2.
        ffn_ratio: Hidden channels of the FFN divided by C. Default: 2.
        drop_rate: Dropout rate of the embeddings, after the attention and in the FFN. Default: 0.1.
        padding: How an attention treats padding. ``'cut'`` (default): it runs on each length by
            itself, without padding. So padding changes nothing, with every attention. ``'mask'``:
            it gets a mask of the keys. This is for attentions that take a mask, and gives the same
            results as ``'cut'``. ``'keep'``: padding is like other tokens.
        pool: ``'mean'`` (default): the mean over the real tokens. ``'padded_mean'``: their sum
            divided by ``max_length``, as in the code that the papers' tables come from. Short
            sequences then have small vectors.
        padding_id: Id of padding, or None without padding. Default: 0.
        pixel_map: Height and width of the picture whose pixels a sequence is, row by row. Positions
            then start as sines and cosines of row and column, with wavelengths from 6 to 180
            pixels, so neighbours are alike. Embeddings of ids start with a standard deviation of
            0.5. Default: None. Positions and embeddings then start at random with a standard
            deviation of 0.02, as in the code that the papers' tables come from.
        with_cp: Whether to recompute activations in the backward pass. Default: False.
        init_cfg: As in mmengine. Default: none.

    Raises:
        ValueError: For an unknown ``padding`` or ``pool``, an ``attn_cfg`` without a known type, an
            attention that takes no mask with ``padding='mask'``, a ``pixel_map`` of other than
            ``max_length`` pixels, or a ``pixel_map`` with ``embed_dims`` that 4 does not divide.
            In the forward, for a sequence that is too long.

    Source: Long Range Arena (arXiv 2011.04006), in the sizes of Nyströmformer and Skyformer, which
    SOFT++ and PolaFormer take.

    Examples:
        >>> import torch
        >>> from mmlaplace.lab.lra import SequenceEncoder
        >>> encoder = SequenceEncoder(257, 1024, dict(type='PolaAttention', key_positions=False))
        >>> one, two = torch.randint(257, (3, 1, 200)), torch.randint(257, (3, 2, 200))
        >>> encoder(one)[0].shape, encoder(two)[0].shape  # of (B, rows, L)
        (torch.Size([3, 64]), torch.Size([3, 256]))
    """

    def __init__(
        self,
        num_embeddings: int,
        max_length: int,
        attn_cfg: dict,
        embed_dims: int = 64,
        depth: int = 2,
        num_heads: int = 2,
        ffn_ratio: float = 2.0,
        drop_rate: float = 0.1,
        padding: str = 'cut',
        pool: str = 'mean',
        padding_id: Optional[int] = 0,
        pixel_map: Optional[Tuple[int, int]] = None,
        with_cp: bool = False,
        init_cfg: Union[dict, List[dict], None] = None,
    ) -> None:
        super().__init__(init_cfg)
        for name, value, known in (('padding', padding, PADDINGS), ('pool', pool, POOLS)):
            if value not in known:
                raise ValueError(f'{name} must be one of {known}, got {value!r}')
        if not isinstance(attn_cfg, dict) or 'type' not in attn_cfg:
            raise ValueError(
                "attn_cfg must name its attention, such as dict(type='PolaAttention'), got "
                f'{attn_cfg!r}'
            )
        sizes = dict(embed_dims=embed_dims, num_heads=num_heads, input_resolution=(max_length, 1))
        attn_cfg = dict(attn_cfg, **sizes)
        if takes(attention_class(attn_cfg['type']), 'proj_drop'):
            attn_cfg.setdefault('proj_drop', drop_rate)
        norm_cfg = dict(type='LN', eps=1e-5)
        self.max_length = max_length
        self.padding = padding
        self.pool = pool
        self.padding_id = padding_id
        self.embedding = nn.Embedding(num_embeddings, embed_dims)
        self.positions = nn.Embedding(max_length, embed_dims)
        for table in (self.embedding, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        if pixel_map is not None:
            self._start_positions(pixel_map)
        self.drop = nn.Dropout(drop_rate)
        options = dict(ffn_ratio=ffn_ratio, drop_rate=drop_rate, with_cp=with_cp, norm_cfg=norm_cfg)
        blocks = [SequenceBlock(embed_dims, attn_cfg, padding, **options) for _ in range(depth)]
        self.blocks = ModuleList(blocks)
        self.norm = build_token_norm(norm_cfg, embed_dims)

    def _start_positions(self, pixel_map: Tuple[int, int]) -> None:
        height, width = pixel_map
        if height * width != self.max_length:
            raise ValueError(
                f'pixel_map {tuple(pixel_map)} has {height * width} pixels, and max_length is '
                f'{self.max_length}; they must be equal'
            )
        quarter, rest = divmod(self.positions.embedding_dim, 4)
        if rest:
            raise ValueError(f'pixel_map needs embed_dims divisible by 4, got {4 * quarter + rest}')
        frequencies = WAVELENGTHS ** -(torch.arange(quarter) / quarter)
        places = torch.meshgrid(torch.arange(height), torch.arange(width), indexing='ij')
        angles = [place.flatten().unsqueeze(1) * frequencies for place in places]
        waves = [wave(angle) for angle in angles for wave in (torch.sin, torch.cos)]
        with torch.no_grad():
            self.positions.weight.copy_(torch.cat(waves, dim=1))
            self.embedding.weight.mul_(25)  # to the size of the positions, or ids would not count

    def _moved_together(self, ids: Tensor, real: Tensor) -> Tuple[Tensor, Tensor]:
        """Order ``(R, longest)`` that puts real tokens first, and lengths ``(R,)``."""
        lengths = real.sum(1).clamp(min=1)  # a sequence of padding alone counts as one token
        return (~real).long().argsort(dim=1, stable=True)[:, : int(lengths.max())], lengths

    def encode(self, ids: Tensor) -> Tensor:
        """Ids ``(R, L)`` of R sequences to vectors ``(R, C)``."""
        if ids.shape[1] > self.max_length:
            raise ValueError(
                f'a sequence has {ids.shape[1]} tokens, more than max_length={self.max_length} of '
                'the encoder; raise it, or lower max_length of the dataset'
            )
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        real = torch.ones_like(ids, dtype=torch.bool)
        if self.padding_id is not None:
            real = ids != self.padding_id
        lengths = None
        if self.padding != 'keep' and not bool(real.all()):
            order, lengths = self._moved_together(ids, real)
            ids, places, real = (x.gather(1, order) for x in (ids, places, real))
        x = self.drop(self.embedding(ids) + self.positions(places))  # (R, L, C)
        for block in self.blocks:
            x = block(x, lengths)
        summed = (self.norm(x) * real.unsqueeze(-1)).sum(1)
        if self.pool == 'padded_mean':
            return summed / self.max_length
        return summed / real.sum(1, keepdim=True).clamp(min=1)

    def forward(self, ids: Tensor) -> Tuple[Tensor]:
        """Ids ``(B, 1, L)`` to ``(B, C)``, or pairs ``(B, 2, L)`` to ``(B, 4 C)``, in a tuple."""
        vectors = self.encode(ids.flatten(0, 1)).unflatten(0, ids.shape[:2])  # (B, rows, C)
        if ids.shape[1] == 1:
            return (vectors[:, 0],)
        a, b = vectors.unbind(1)
        return (torch.cat([a, b, a * b, a - b], dim=-1),)
