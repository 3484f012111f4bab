"""The backbone here that the weights of a model of timm are for, by timm's name."""

from difflib import get_close_matches
from functools import cache
from typing import Any, Dict, Optional

import torch

from ._hubs import TIMM
from .published import PUBLISHED, ImageStats, by_file_name, fitting, recognise

# The activation of FFNs by its class in timm; None for that of a backbone without act_cfg.
ACTIVATIONS = dict(
    GELU=None, GELUTanh=dict(type='GELU', approximate='tanh'), QuickGELU=dict(type='QuickGELU')
)


def is_of_timm(name: Any) -> bool:
    """Whether a name is an address ``timm://NAME``."""
    return str(name).startswith(TIMM)


def backbone_of_timm(address: str) -> Dict[str, Any]:
    """The config of the backbone that the weights ``timm://NAME`` fit.

    timm's model is built without memory, and nothing is downloaded. ``img_size`` is that of timm's
    weights.

    Args:
        address: The address, such as ``'timm://vit_small_patch16_dinov3'``. As in timm, a name may
            end with a tag: ``'timm://vit_base_patch16_siglip_224.v2_webli'``.

    Raises:
        ImportError: If timm is not installed.
        ValueError: If timm has no such model, or no backbone here has its layers.

    Examples:
        >>> from mmlaplace.checkpoints.of_timm import backbone_of_timm
        >>> backbone_of_timm('timm://vit_small_patch16_dinov3')
        {'type': 'DINOv3', 'arch': 'small', 'img_size': 256}
    """
    return dict(_backbone_of(address))


@cache
def _backbone_of(address: str) -> Dict[str, Any]:
    name = address[len(TIMM) :]
    try:
        import timm
    except ImportError as error:
        raise ImportError(f'{address} is in timm: pip install timm') from error
    if not timm.is_model(name.partition('.')[0]):
        near = get_close_matches(name, timm.list_models(), cutoff=0.5)
        raise ValueError(
            f'{address!r}: timm {timm.__version__} has no model {name!r}; '
            + (f'similar names are {", ".join(near)}; ' if near else '')
            + 'timm.list_models() has all names'
        )
    with torch.device('meta'):
        try:
            model = timm.create_model(name)
        except RuntimeError as error:  # of an unknown tag
            raise ValueError(
                f'{address!r}: {error}; timm.list_pretrained() has all names with their tags'
            ) from error
    fit = _published_of(model, address)
    cfg: Any = timm.get_pretrained_cfg(name)
    options = dict(PUBLISHED[fit].backbone)
    options.pop('out_type', None)
    side = cfg.input_size[-1] if cfg else 224
    if side != options.get('img_size', 224):
        options['img_size'] = side
    activation = type(getattr(getattr(_first_block(model), 'mlp', None), 'act', None)).__name__
    if activation in ACTIVATIONS:  # which no tensor tells
        options.pop('act_cfg', None)
        if ACTIVATIONS[activation] is not None:
            options['act_cfg'] = ACTIVATIONS[activation]
    return options


def image_stats_of_timm(address: str) -> ImageStats:
    """The statistics of the images that weights of ``timm://NAME`` were trained with.

    Examples:
        >>> from mmlaplace.checkpoints.of_timm import image_stats_of_timm
        >>> image_stats_of_timm('timm://vit_base_patch16_siglip_224').mean
        (127.5, 127.5, 127.5)
    """
    import timm

    cfg: Any = timm.get_pretrained_cfg(address[len(TIMM) :])
    return ImageStats(
        *(tuple(round(255 * each, 3) for each in values) for values in (cfg.mean, cfg.std))
    )


def _first_block(model: torch.nn.Module) -> Optional[torch.nn.Module]:
    """The first block of a plain ViT of timm."""
    blocks = getattr(model, 'blocks', None)
    return blocks[0] if isinstance(blocks, torch.nn.Sequential) else None


def _published_of(model: torch.nn.Module, address: str) -> str:
    """The published model that the tensors of a model of timm fit."""
    state = model.state_dict()
    table = recognise(state)
    fit = fitting(table.convert(state).weights) if table and not table.unknown(state) else []
    rotary = getattr(model, 'rope', None) is not None  # which no tensor tells
    fit = [name for name in fit if rotary == _has_rotary(PUBLISHED[name].backbone)]
    fit = by_file_name(fit, address)
    backbones = [
        {key: value for key, value in PUBLISHED[name].backbone.items() if key != 'img_size'}
        for name in fit
    ]
    if not fit or any(each != backbones[0] for each in backbones):
        said = 'no backbone here has its layers'
        if fit:
            said = f'{" and ".join(fit)} have its layers, and its name does not tell which'
        raise ValueError(
            f'{address!r}: {said}; those of ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP, EVA-02, XCiT, '
            'Swin, PVTv2 and others are here, see python -m mmlaplace list --weights'
        )
    return fit[0]


def _has_rotary(backbone: Dict[str, Any]) -> bool:
    return backbone['type'] == 'DINOv3' or 'rope_form' in backbone
