"""Mixing rules in models of Hugging Face's transformers: ``import mmlaplace.transformers``.

A model then takes them by name, with the weights that it has:

.. code-block:: python

    import mmlaplace.transformers
    from transformers import AutoModel

    model = AutoModel.from_pretrained(NAME, attn_implementation='LinearAttention')
    model.set_attn_implementation('EfficientLinearAttention')

The names are those of :data:`NAMES`: the attentions whose rule has no parameters and takes queries,
keys and values from outside. :func:`register` adds others, with options. The rules have no map, so
windows, rotary positions and convolutions of our backbones are not in them; what the model does to
queries and keys before stays, such as DINOv3's rotary positions.

``import mmlaplace`` alone neither needs transformers nor imports it.
"""

from typing import Any, Dict, Optional, Tuple

import torch.nn as nn
from torch import Tensor

from .models.attentions import QKVAttention
from .models.mixing_rule import mixing_rule

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
except ImportError as error:
    raise ImportError(
        f'this needs transformers 5, which cannot be imported ({error}); pip install transformers, '
        'in an environment without mmpretrain 1.3.6, which cannot be imported beside it'
    ) from error

# PerformerAttention has none either. But its random features would be of no checkpoint.
NAMES: Dict[str, Dict[str, Any]] = {
    name: dict(type=name)
    for name in (
        'BasedAttention',
        'CastlingAttention',
        'EfficientLinearAttention',
        'FlowAttention',
        'HydraAttention',
        'InLineAttention',
        'LinearAttention',
        'MALAAttention',
        'MLLAAttention',
        'NystromformerAttention',
        'RALAAttention',
        'SANAAttention',
        'SLABAttention',
        'SkyformerAttention',
        'SoftmaxAttention',
    )
}
# The paper's form has a learned factor; this one has none.
ROWS = dict(normalization='rows', landmarks_from='queries')
NAMES['LaplacianAttention'] = dict(type='LaplacianAttention', **ROWS)
# The exact kernel that it approximates.
NAMES['KernelAttention'] = dict(type='KernelAttention', kernel='laplacian', normalization='rows')


class Rule:
    """A mixing rule as transformers calls it.

    Args:
        name: The name in transformers, for messages.
        attn_cfg: The dict of the attention, with a ``type``.

    Raises:
        ValueError: When it is called: for a rule with parameters, which would be in no checkpoint
            of the model, and for a mask, causal attention or dropout that the rule does not take.
    """

    def __init__(self, name: str, attn_cfg: Dict[str, Any]) -> None:
        self.name, self.attn_cfg = name, attn_cfg
        self.rules: Dict[Tuple[int, int, float], QKVAttention] = {}

    def rule(self, embed_dims: int, num_heads: int, dropout: float) -> QKVAttention:
        """The rule for so many channels and heads, which is made once."""
        key = embed_dims, num_heads, dropout
        if key not in self.rules:
            self.rules[key] = self._made(*key)
        return self.rules[key]

    def _made(self, embed_dims: int, num_heads: int, dropout: float) -> QKVAttention:
        rule = mixing_rule(embed_dims, num_heads, dropout, self.attn_cfg)
        kept = [name for name, _ in (*rule.named_parameters(), *rule.named_buffers())]
        if kept:
            raise ValueError(
                f'{self.name} has tensors of its own ({", ".join(kept)}), which no checkpoint of a '
                f'model of transformers has; take one of {", ".join(sorted(NAMES))}, or put '
                'mmlaplace.models.LinearMultiheadAttention into the model'
            )
        return rule

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Optional[Tensor],
        scaling: Optional[float] = None,
        dropout: float = 0.0,
        is_causal: Optional[bool] = None,
        **kwargs: Any,
    ) -> Tuple[Tensor, None]:
        """Mixed values ``(B, N, heads, d)``, and None in the place of weights.

        Args:
            module: The attention of the model, whose ``is_causal`` is asked.
            query: ``(B, heads, N, d)``.
            key, value: ``(B, groups, n, d)``, where ``groups`` divides the heads.
            attention_mask: Booleans of what is seen, or numbers to add to scores, ``(B, 1 or heads,
                N, n)``. Only softmax takes it.
            scaling: Of the scores. Queries are scaled by it, in units of the usual
                :math:`d^{-1/2}`. Default: that.
            dropout: Of the weights, for a rule that has any. Default: 0.
            is_causal: Whether a token sees only those before it. Default: ``module.is_causal``.
        """
        if is_causal or (is_causal is None and getattr(module, 'is_causal', False)):
            raise ValueError(
                f'{self.name} has no causal form, which {type(module).__name__} asks for; take it '
                'for an encoder such as a ViT'
            )
        heads, head_dims = query.shape[1], query.shape[3]
        rule: Any = self.rule(heads * head_dims, heads, dropout)
        if attention_mask is not None and not rule.accepts_mask:
            raise ValueError(
                f'{self.name} mixes all keys for all queries, so it takes no attention_mask (got '
                f'{tuple(attention_mask.shape)}); leave it out, or take SoftmaxAttention'
            )
        if rule.same_tokens and key.shape[2] != query.shape[2]:
            raise ValueError(
                f'{self.name} needs keys of the tokens of the queries, because {rule.same_tokens}; '
                f'got {query.shape[2]} queries and {key.shape[2]} keys'
            )
        if key.shape[1] != heads:
            key, value = (
                each.repeat_interleave(heads // key.shape[1], dim=1) for each in (key, value)
            )
        if scaling is not None and scaling != head_dims**-0.5:
            query = query * (scaling * head_dims**0.5)
        options = {} if attention_mask is None else dict(mask=attention_mask)
        return rule.mix(query, key, value, None, **options).transpose(1, 2).contiguous(), None


def mask(*args: Any, **kwargs: Any) -> Optional[Tensor]:
    """What transformers makes of a mask of padding, or None where a token sees all others.

    For torch's softmax, transformers makes a mask of ones in a compiled graph, which no other rule
    takes.
    """
    sees_all = kwargs.get('allow_is_bidirectional_skip') and kwargs.get('attention_mask') is None
    return None if sees_all else sdpa_mask(*args, **kwargs)


def register(name: str, attn_cfg: Optional[Dict[str, Any]] = None) -> None:
    """Register a mixing rule in transformers under a name.

    Args:
        name: For ``attn_implementation``.
        attn_cfg: The dict of the attention, with a ``type``. Default: the attention of that name.

    Examples:
        .. code-block:: python

            from mmlaplace.transformers import register

            register('near', dict(type='LaplacianAttention', normalization='rows', bandwidth=2))
            model.set_attn_implementation('near')
    """
    AttentionInterface.register(name, Rule(name, attn_cfg or dict(type=name)))
    AttentionMaskInterface.register(name, mask)


for _name, _cfg in NAMES.items():
    register(_name, _cfg)
