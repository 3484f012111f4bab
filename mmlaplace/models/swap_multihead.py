"""Other attentions in the place of ``torch.nn.MultiheadAttention`` in any model."""

from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any, Dict, List

import torch.nn as nn
from mmengine.registry import MODELS

from .known_options import did_you_mean
from .multihead import LinearMultiheadAttention

CROSS = {'cross_attn', 'multihead_attn'}  # names of mmdet and torch


def swap_multihead_attention(model: nn.Module, attn_cfg: dict, within: str = '') -> List[str]:
    """Put :class:`LinearMultiheadAttention` where a model has ``torch.nn.MultiheadAttention``.

    Weights are copied. An attention whose name has ``self_attn`` gets ``self_attention=True``, and
    one with ``cross_attn`` or torch's ``multihead_attn`` False. An encoder of torch in which an
    attention is replaced makes no more nested tensors.

    Args:
        model: Any model.
        attn_cfg: As in :class:`LinearMultiheadAttention`.
        within: Name of the part of the model, such as ``'encoder'`` or
            ``'decoder.layers.*.cross_attn'``. Default: ``''``, the whole model.

    Returns:
        Names of the attentions.

    Raises:
        ValueError: If there is none in that part, or one cannot be replaced, as
            :class:`LinearMultiheadAttention` says. The model is then unchanged.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import swap_multihead_attention
        >>> layer = torch.nn.TransformerEncoderLayer(64, 2, batch_first=True)
        >>> encoder = torch.nn.TransformerEncoder(layer, num_layers=2)
        >>> swap_multihead_attention(encoder, dict(type='PolaAttention'))
        ['layers.0.self_attn', 'layers.1.self_attn']
    """
    places = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.MultiheadAttention)
        and not isinstance(module, LinearMultiheadAttention)
    }
    if '' in places:
        raise ValueError(
            f'the model is a {type(model).__name__} itself, which has no place to put another in; '
            'call LinearMultiheadAttention.from_multihead_attention'
        )
    pattern = f'{within}.*' if within else '*'
    chosen = [name for name in places if fnmatchcase(f'{name}.', pattern)]
    if not chosen:
        raise ValueError(
            f'there is no torch.nn.MultiheadAttention in {within or "the model"!r}; this '
            f'{type(model).__name__} has {list(places) or "none"}'
        )
    # One for an attention that has several names, and all before the model changes.
    new: Dict[nn.Module, nn.Module] = {}
    for name in chosen:
        own = places[name]
        parts = set(name.split('.'))
        same = None  # it is not known whether keys are of the queries' tokens
        if 'self_attn' in parts:
            same = True
        elif parts & CROSS:
            same = False
        if own not in new:
            new[own] = LinearMultiheadAttention.from_multihead_attention(own, attn_cfg, same)
    for name in chosen:
        parent, _, last = name.rpartition('.')
        setattr(model.get_submodule(parent), last, new[places[name]])
    placed = {*new.values()}
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and placed & {*module.modules()}:
            module.use_nested_tensor = False
    return chosen


@MODELS.register_module()
class ModelWithAttentions:
    """A model of a toolbox with other attentions in the place of ``torch.nn.MultiheadAttention``.

    It is for a config: the model is that of ``model_type``, and no instance of this class.

    Args:
        model_type: Registered type of the model, such as ``'DETR'``.
        attentions: For each part of the model, such as ``'encoder'``, the ``attn_cfg`` of
            :class:`LinearMultiheadAttention`.
        **options: The model's.

    Raises:
        ValueError: For attentions that are no dict, for a type that is not registered, and as
            :func:`swap_multihead_attention`.

    Examples:
        >>> model = dict(
        ...     type='ModelWithAttentions', model_type='DETR',
        ...     attentions=dict(encoder=dict(type='PolaAttention')))
    """

    def __new__(cls, model_type: str, attentions: Dict[str, dict], **options: Any) -> Any:
        if not isinstance(attentions, dict):
            raise ValueError(
                f'attentions={attentions!r} must be a dict by parts of the model; write '
                "dict(encoder=dict(type='PolaAttention'))"
            )
        with MODELS.switch_scope_and_registry(None) as registry:
            base = registry.get(model_type)
            if base is None:
                raise ValueError(
                    f'model_type={model_type!r} is not registered'
                    f'{did_you_mean(model_type, registry.module_dict)}; import its toolbox by '
                    'custom_imports'
                )
            model = keeping_rules(base)(**options)
        for within, attn_cfg in attentions.items():
            swap_multihead_attention(model, attn_cfg, within)
        return model


@cache
def keeping_rules(base: type) -> type:
    """A model's class whose ``init_weights`` leaves learned scales of mixing rules as they start.

    DETR and others fill all matrices of their encoder at random, and scales of heads are such.
    Scales that an ``init_cfg`` loads, of the model or of a part, stay as loaded.
    """

    class Keeping(base):
        def init_weights(self) -> None:
            rules = [m.attn for m in self.modules() if isinstance(m, LinearMultiheadAttention)]
            kept = [{name: x.clone() for name, x in rule.state_dict().items()} for rule in rules]
            hooks = [
                rule._register_load_state_dict_pre_hook(partial(_keep_loaded, state))
                for rule, state in zip(rules, kept)
            ]
            super().init_weights()
            for rule, state, hook in zip(rules, kept, hooks):
                hook.remove()
                rule.load_state_dict(state)

        def __reduce_ex__(self, protocol: Any) -> tuple:
            return _without_values, (base,), self.__dict__

    for name in ('__name__', '__qualname__', '__module__', '__doc__'):
        setattr(Keeping, name, getattr(base, name))
    return Keeping


def _keep_loaded(kept: dict, loaded: dict, prefix: str, *_: Any) -> None:
    """Before a rule loads a state dict: what it has of the rule is kept."""
    kept.update({name: loaded[prefix + name] for name in kept if prefix + name in loaded})


def _without_values(base: type) -> Any:
    """For pickle, which finds no class that is made by a function."""
    kind: Any = keeping_rules(base)
    return kind.__new__(kind)
