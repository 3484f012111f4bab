"""The mixing rule of an attention, without its linears."""

from dataclasses import fields
from typing import Any, Dict, Optional

from .attentions import BaseAttention, Frame, QKVAttention
from .pyramid.options import attention_class, takes

# The frame without all that needs a map. The linears are those of torch.
WITHOUT_MAP = dict(
    qkv='qkv',
    gate=False,
    sr_ratio=1,
    key_positions=False,
    rope=False,
    lepe_kernel=0,
    second_lepe_kernel=0,
    proj=False,
)
# Options of layers outside of the mixing rule, of maps, and of other sizes.
NOT_OF_THE_RULE = {field.name for field in fields(Frame)} - {'qkv', 'gate'} | {
    'attn_drop',
    'embed_dims',
    'filters_from',
    'gate_form',
    'gate_init',
    'head_dims',
    'init_cfg',
    'key_dims',
    'lepe_deformable',
    'num_heads',
    'num_prefix_tokens',
    'out_dims',
    'pool_size',
    'relative_bias',
    'residual',
    'sr_norm_cfg',
    'value_dims',
    'value_shortcut',
    'window_size',
}


def options_of_rule(attn_cfg: Optional[dict]) -> Dict[str, Any]:
    """The options of an ``attn_cfg``, with the default type.

    Raises:
        ValueError: For a name in the place of a dict.
    """
    if isinstance(attn_cfg, str):
        raise ValueError(f'attn_cfg must be a dict; write dict(type={attn_cfg!r})')
    return {'type': 'LinearAttention', **(attn_cfg or {})}


def mixing_rule(
    embed_dim: int, num_heads: int, dropout: float, attn_cfg: Dict[str, Any]
) -> QKVAttention:
    """The attention of a config without its linears, for :class:`LinearMultiheadAttention`.

    Raises:
        ValueError: For an attention or an option that it cannot have.
    """
    options = {'input_resolution': (1024, 1), **attn_cfg}
    cls = attention_class(options.pop('type'))
    if reason := getattr(cls, 'no_multihead', BaseAttention.no_multihead):
        raise ValueError(
            f'{cls.__name__} cannot be in LinearMultiheadAttention, because {reason}; take '
            'another, such as LinearAttention'
        )
    cls.check_options(options)
    wrong = sorted(set(options) & NOT_OF_THE_RULE)
    if wrong:
        raise ValueError(
            f'{", ".join(f"{name}={options[name]!r}" for name in wrong)} of {cls.__name__} is no '
            'option of its mixing rule; leave it out of attn_cfg'
        )
    if options.get('qkv', 'qkv') not in ('qkv', 'shared_qk'):
        raise ValueError(f"qkv must be 'qkv' or 'shared_qk', got {options['qkv']!r}")
    if takes(cls, 'attn_drop'):
        options['attn_drop'] = dropout
    elif dropout:
        raise ValueError(
            f'{cls.__name__} has no matrix of weights to drop from, got dropout={dropout}; set '
            'dropout=0'
        )
    without = {name: value for name, value in WITHOUT_MAP.items() if takes(cls, name)}
    attention = cls(embed_dim, num_heads, **{**without, **options})
    attention.qkv = attention.kv = None  # torch's are in their place
    return attention
