"""Norms and activations from OpenMMLab configs, without mmcv."""

from typing import Callable, Dict, Mapping

import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from ..known_options import did_you_mean
from .feature_map import map_to_tokens, tokens_to_map


class MapLayerNorm(nn.LayerNorm):
    """A LayerNorm over the channels of each pixel of maps ``(B, C, H, W)``, as in ViTDet."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)  # (B, H, W, C)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


# OpenMMLab's names, which are in the registry only where mmcv is imported.
TOKEN_NORMS: Dict[str, type] = {'LN': nn.LayerNorm}
if hasattr(nn, 'RMSNorm'):  # torch >= 2.4
    TOKEN_NORMS['RMSN'] = nn.RMSNorm
MAP_NORMS: Dict[str, Callable[..., nn.Module]] = {
    'BN': nn.BatchNorm2d,
    'BN2d': nn.BatchNorm2d,
    'SyncBN': nn.SyncBatchNorm,
    'LN2d': MapLayerNorm,
    'GN': lambda channels, num_groups=32, **options: nn.GroupNorm(num_groups, channels, **options),
}


class QuickGELU(nn.Module):
    """``x * sigmoid(1.702 x)``, the approximation of GELU in CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1.702 * x).sigmoid()


NORMS_OF_MAPS = (_BatchNorm, _InstanceNorm, nn.GroupNorm)
ACTIVATIONS: Dict[str, type] = {
    'GELU': nn.GELU,
    'ReLU': nn.ReLU,
    'ReLU6': nn.ReLU6,
    'SiLU': nn.SiLU,
    'HSwish': nn.Hardswish,
    'QuickGELU': QuickGELU,
}


class MapNorm(nn.Module):
    """A norm of maps for tokens ``(B, N, C)``, such as BatchNorm, with statistics of all tokens.

    The norm of maps is inside, as ``norm``. So mmengine's ``sync_bn`` can replace it.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return map_to_tokens(self.norm(tokens_to_map(x, (x.shape[1], 1))))


def build_token_norm(norm_cfg: dict, embed_dims: int) -> nn.Module:
    """A norm over the channels of tokens ``(B, N, C)``.

    Args:
        norm_cfg: ``dict(type='LN', eps=1e-6)``, ``'RMSN'`` (torch >= 2.4), ``'BN'``, ``'SyncBN'``,
            ``'GN'``, ``'LN2d'`` or a registered class that takes C first. ``requires_grad=False``
            freezes its parameters. Other keys are its arguments.
        embed_dims: Channels C.

    Raises:
        ValueError: For a config without a known type.
    """
    if isinstance(norm_cfg, dict) and norm_cfg.get('type') == 'LN2d':
        norm_cfg = dict(norm_cfg, type='LN')  # of tokens, it is the same
    if isinstance(norm_cfg, dict) and norm_cfg.get('type') in tuple(MAP_NORMS):
        return MapNorm(build_map_norm(norm_cfg, embed_dims))
    norm = _build_norm(norm_cfg, embed_dims, {**TOKEN_NORMS, **MAP_NORMS}, 'tokens')
    if isinstance(norm, NORMS_OF_MAPS):  # they would take tokens for a map, or channels for rows
        raise ValueError(
            f'norm_cfg has type {norm_cfg["type"]!r}, a norm of maps, for tokens; take one of '
            f'{[*TOKEN_NORMS, *MAP_NORMS]}'
        )
    return norm


def build_map_norm(norm_cfg: dict, channels: int) -> nn.Module:
    """A norm of maps ``(B, C, H, W)``: ``'BN'``, ``'SyncBN'``, ``'GN'``, ``'LN2d'`` or a class.

    Arguments and errors are those of :func:`build_token_norm`.
    """
    norm = _build_norm(norm_cfg, channels, MAP_NORMS, 'maps')
    # By the type, as LayerNorms of maps are subclasses of PyTorch's.
    if getattr(norm, 'of_tokens', False) or type(norm) in TOKEN_NORMS.values():
        raise ValueError(
            f'norm_cfg has type {norm_cfg["type"]!r}, a norm of tokens, for maps; take one of '
            f'{list(MAP_NORMS)}'
        )
    return norm


def build_activation(act_cfg: dict) -> nn.Module:
    """An activation, such as ``dict(type='GELU', approximate='tanh')``, ``'ReLU'`` or ``'SiLU'``.

    Raises:
        ValueError: For a config without a known type.
    """
    cls, options = _look_up('act_cfg', act_cfg, ACTIVATIONS, 'activation')
    return cls(**options)


def _build_norm(norm_cfg: dict, channels: int, known: Mapping[str, Callable], of: str) -> nn.Module:
    cls, options = _look_up('norm_cfg', norm_cfg, known, f'norm of {of}')
    requires_grad = options.pop('requires_grad', True)
    return cls(channels, **options).requires_grad_(requires_grad)


def _look_up(name: str, cfg: dict, known: Mapping[str, Callable], what: str) -> tuple:
    """The class that a config names, and the config's other keys."""
    if not isinstance(cfg, dict) or 'type' not in cfg:
        raise ValueError(f'{name} must be a dict with a type, such as {list(known)}, got {cfg!r}')
    options = dict(cfg)
    kind = options.pop('type')
    cls = kind if isinstance(kind, type) else known.get(kind)
    if cls is None and kind not in {**MAP_NORMS, **TOKEN_NORMS}:
        cls = MODELS.get(kind)
    if cls is None:
        raise ValueError(
            f'{name} has type {kind!r}, which is no {what}{did_you_mean(kind, known)}; take one of '
            f'{list(known)} or a class '
            'registered in mmengine.registry.MODELS'
        )
    return cls, options
