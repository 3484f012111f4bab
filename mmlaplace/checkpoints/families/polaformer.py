"""PolaFormer on PVT and Swin."""

from typing import Tuple

import torch
from torch import Tensor

from ..conversion import Names, Rows, position_map
from .family import REDUCED, Family, first, flat, square_map
from .pvt import UNUSED_NORM, pvt_rows
from .swin import WINDOWS, swin_rows


def query_and_gate(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """q and g of the rows of q, k, v and g."""
    query, _, _, gate = value.chunk(4)
    return torch.cat([query, gate])


def key_and_value(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """k and v of the rows of q, k, v and g."""
    _, key, own, _ = value.chunk(4)
    return torch.cat([key, own])


POLA: Rows = {
    **REDUCED,
    'qg.': 'qkv.',
    'dwc.': 'lepe.conv.',
    'power': ('power', first),
    'scale': ('scale', flat),
    'positional_encoding': ('key_positions', position_map),
}
POLA_WINDOWS: Rows = {
    **POLA,
    **WINDOWS,
    'qkvg.weight': [('qkv.weight', query_and_gate), ('kv.weight', key_and_value)],
    'qkvg.bias': [('qkv.bias', query_and_gate), ('kv.bias', key_and_value)],
    'positional_encoding': ('key_positions', square_map),
}
PVT = Names(
    {**pvt_rows(POLA), **UNUSED_NORM},
    marks=('block1.0.attn.power', 'block1.0.attn.qg.weight'),
)
SWIN = Names(
    swin_rows('{i+1}', POLA_WINDOWS),
    marks=('layers.0.blocks.0.attn.power', 'layers.0.blocks.0.attn.qkvg.weight'),
)

PAGE = 'https://huggingface.co/ZachMeng/PolaFormer/tree/main'
FAMILIES = {
    **{
        f'polaformer_pvt_{size}': Family(
            (PVT,),
            dict(type='PolaFormerPVT', arch=size),
            page=PAGE if size in ('tiny', 'small') else '',  # those that their README lists
        )
        for size in ('tiny', 'small', 'medium', 'large')
    },
    **{
        f'polaformer_swin_{size}': Family(
            (SWIN,), dict(type='PolaFormerSwin', arch=size), page=PAGE
        )
        for size in ('tiny', 'small', 'base')
    },
}
