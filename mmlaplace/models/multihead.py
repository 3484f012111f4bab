"""The mixing rules of the attentions behind the interface of ``torch.nn.MultiheadAttention``."""

from contextlib import nullcontext
from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops import exporting
from mmlaplace.ops.precision import no_autocast

from .attentions import Projected
from .layers.block import has_hooks
from .layers.padding import equal_lengths, places_of, taken
from .mixing_rule import mixing_rule, options_of_rule
from .pyramid.options import attention_class, takes
from .pyramid.tracing import one_step


@MODELS.register_module()
class LinearMultiheadAttention(nn.MultiheadAttention):
    r"""``torch.nn.MultiheadAttention`` with the mixing rule of another attention.

    .. math::
        \mathrm{out} = \mathrm{merge}\big( \mathrm{mix}(W_q\, \mathrm{query}, W_k\, \mathrm{key},
                       W_v\, \mathrm{value}) \big) W_o

    Arguments, axes, masks and names of the weights are those of torch. So it takes the place of a
    trained ``nn.MultiheadAttention`` (:meth:`from_multihead_attention`), and loads its weights.
    The tokens have no map: positions, convolutions and reductions of a frame are left out.
    Landmarks are means of successive tokens.

    With a ``key_padding_mask``, each sequence is mixed without its padding, so it gets the result
    that it has alone. Softmax takes the mask as it is. Other rules mix sequences of one length
    together. They read the lengths on the host: torch.compile breaks its graph there, and an export
    refuses the mask.

    Queries have no mask. If query and key are the same tokens, the mask hides queries too, and
    outputs of padding are ``out_proj`` of zeros. So is the output of a query that sees no key; its
    weights are zeros. torch gives the same with ``need_weights=False``, and NaN with ``True``.

    Args:
        embed_dim, num_heads, bias, kdim, vdim, batch_first, device, dtype: As in
            ``torch.nn.MultiheadAttention``.
        dropout: Dropout rate of the weights, which only :class:`SoftmaxAttention` and
            :class:`KernelAttention` have. Default: 0.
        add_bias_kv, add_zero_attn: No rule has such a key. Default: False.
        attn_cfg: Config of the attention: its type, options of its mixing rule, ``gate=True`` for a
            gate of the query, ``qkv='shared_qk'`` for keys that are the queries, and
            ``input_resolution``, whose product is the number of tokens that starts learned scales.
            Default: ``dict(type='LinearAttention', input_resolution=(1024, 1))``.
        self_attention: Whether the keys are the tokens of the queries, which some rules need.
            Default: None, if query and key are one tensor.

    Raises:
        ValueError: For an attention that needs a map or has one input, options outside of its
            mixing rule, and a dropout rate if its weights have no dropout. In the forward, for an
            ``attn_mask`` with a rule other than softmax, for nested tensors, tokens of wrong axes,
            keys of other tokens where the rule needs those of the queries, and a mask that leaves
            open whether queries are padded.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LinearMultiheadAttention
        >>> attention = LinearMultiheadAttention(64, 2, batch_first=True)
        >>> query, memory = torch.randn(3, 100, 64), torch.randn(3, 850, 64)
        >>> padding = torch.arange(850) >= torch.tensor([[850], [700], [640]])
        >>> out, weights = attention(query, memory, memory, key_padding_mask=padding)
        >>> out.shape, weights
        (torch.Size([3, 100, 64]), None)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: Optional[int] = None,
        vdim: Optional[int] = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
        attn_cfg: Optional[dict] = None,
        self_attention: Optional[bool] = None,
    ) -> None:
        if add_bias_kv or add_zero_attn:
            raise ValueError(
                f'add_bias_kv={add_bias_kv} and add_zero_attn={add_zero_attn} add keys that no '
                'mixing rule has; leave them out'
            )
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            kdim=kdim,
            vdim=vdim,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        self.self_attention = self_attention
        self.attn: Any = mixing_rule(embed_dim, num_heads, dropout, options_of_rule(attn_cfg))
        gated = self.attn.frame.gate
        self.gate = nn.Linear(embed_dim, embed_dim, bias) if gated else None
        self.to(device=device, dtype=dtype)

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # torch's encoder layer would compute softmax itself in eval mode, of weights it finds here.
        self._qkv_same_embed_dim = False

    @classmethod
    def from_multihead_attention(
        cls,
        module: nn.MultiheadAttention,
        attn_cfg: Optional[dict] = None,
        self_attention: Optional[bool] = None,
    ) -> 'LinearMultiheadAttention':
        """One with the sizes and copies of the weights of a trained ``nn.MultiheadAttention``.

        The dropout of weights is kept where the new rule has weights. Learned scales of the rule
        and a gate are new.

        Raises:
            ValueError: For a module with hooks or with another forward than torch's, which would be
                lost, for one without a plain tensor of each name, such as one with a spectral norm,
                and as the class.
        """
        changed = getattr(module.forward, '__func__', None) is not nn.MultiheadAttention.forward
        if changed or has_hooks(module):
            raise ValueError(
                f'this {type(module).__name__} has {"another forward" if changed else "hooks"}, '
                'which a new attention would lose; swap first, and change the new one'
            )
        kind = attention_class(options_of_rule(attn_cfg)['type'])
        weight = module.out_proj.weight
        new = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout if takes(kind, 'attn_drop') else 0.0,
            module.in_proj_bias is not None,
            module.bias_k is not None,
            module.add_zero_attn,
            module.kdim,
            module.vdim,
            module.batch_first,
            weight.device,
            weight.dtype,
            attn_cfg,
            self_attention,
        )
        missing, other = new.load_state_dict(module.state_dict(), strict=False)
        lost = [name for name in missing if not name.startswith(('attn.', 'gate.'))]
        if lost or other:
            raise ValueError(
                f'this {type(module).__name__} has {other} for {lost}; remove the parametrization '
                'first, by torch.nn.utils.parametrize.remove_parametrizations'
            )
        for name, parameter in module.named_parameters():
            new.get_parameter(name).requires_grad_(parameter.requires_grad)
        return new.train(module.training)

    @one_step
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        need_weights: bool = True,
        attn_mask: Optional[Tensor] = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """The output, and the weights of softmax if they are needed; other rules give None.

        Args:
            query: ``(N, B, C)``, ``(B, N, C)`` with ``batch_first``, or ``(N, C)``.
            key, value: ``(n, B, kdim)`` and ``(n, B, vdim)``, or as above.
            key_padding_mask: True, or minus infinity, at the keys ``(B, n)`` that no query sees.
                Softmax also adds other numbers to the scores. Default: None.
            need_weights: Whether softmax returns its weights, which costs a matrix ``(B, heads, N,
                n)``. Default: True.
            attn_mask: For softmax: True at the keys that a query does not see, or numbers to add
                to the scores, ``(N, n)`` or ``(B * heads, N, n)``. Default: None.
            average_attn_weights: Whether weights are averaged over the heads. Default: True.
            is_causal: Whether ``attn_mask`` is causal, which only tells. Default: False.
        """
        same = query is key if self.self_attention is None else self.self_attention
        batched = query.dim() == 3
        self._check(query, key, value, key_padding_mask, attn_mask, is_causal, same)
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v, gate = self._heads(query, key, value)
        weights = None
        if self.attn.accepts_mask:
            options = self._seen(q, k, attn_mask, key_padding_mask)
            if need_weights:  # mixed unit vectors are the weights
                units = torch.eye(k.shape[2], dtype=v.dtype, device=v.device)
                weights = self.attn.mix(q, k, units.expand(*k.shape[:2], -1, -1), None, **options)
            out = self.attn.mix(q, k, v, None, **options) if weights is None else weights @ v
        elif key_padding_mask is not None:
            out = self._mixed_without(self._padded(key_padding_mask, same, q, k), q, k, v, same)
        else:
            out = self._mixed(q, k, v)
        out = self.attn.merge_heads(out)  # (B, N, C)
        out = self.out_proj(out if gate is None else self.attn.apply_gate(out, gate))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return out.squeeze(0), weights if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _check(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Optional[Tensor],
        attn_mask: Optional[Tensor],
        is_causal: bool,
        same: bool,
    ) -> None:
        """Raise a ValueError for arguments that the rule cannot take, as in the class."""
        name, attn = type(self.attn).__name__, self.attn
        if query.is_nested or key.is_nested or value.is_nested:
            raise ValueError(
                f'{name} takes no nested tensor, which torch.nn.TransformerEncoder makes in eval '
                'mode; set its use_nested_tensor to False'
            )
        sizes = dict(query=self.embed_dim, key=self.kdim, value=self.vdim)
        axes = '(B, N, C)' if self.batch_first else '(N, B, C)'
        for argument, x in dict(query=query, key=key, value=value).items():
            if x.dim() not in (2, 3) or x.dim() != query.dim() or x.shape[-1] != sizes[argument]:
                raise ValueError(
                    f'{argument} must be {axes} or (N, C) as the query is, with C = '
                    f'{sizes[argument]}, got {tuple(x.shape)} and a query {tuple(query.shape)}'
                )
        if key.shape[:-1] != value.shape[:-1]:
            raise ValueError(
                f'key and value must be of the same tokens, got {tuple(key.shape)} and '
                f'{tuple(value.shape)}'
            )
        batch = 0 if self.batch_first else 1
        if query.dim() == 3 and query.shape[batch] != key.shape[batch]:
            shapes = f'{tuple(query.shape)} and {tuple(key.shape)}'
            raise ValueError(f'query and key must be {axes} of one batch, got {shapes}')
        if same and query.shape[:-1] != key.shape[:-1]:
            raise ValueError(
                'self_attention=True needs keys of the tokens of the queries, got a query '
                f'{tuple(query.shape)} and a key {tuple(key.shape)}; set self_attention=False'
            )
        reason = attn.same_tokens or (attn.frame.qkv == 'shared_qk' and "qkv='shared_qk'")
        if reason and not same:
            raise ValueError(
                f'{name} needs keys of the tokens of the queries, because {reason}; pass one '
                f'tensor as query and key, or set self_attention=True (got {self.self_attention})'
            )
        if is_causal and attn_mask is None:
            raise ValueError('is_causal=True only tells what attn_mask is; give attn_mask too')
        if attn_mask is not None and not attn.accepts_mask:
            raise ValueError(
                f'{name} mixes all keys for all queries, so it takes no attn_mask (got '
                f'{tuple(attn_mask.shape)}); leave it out, or take SoftmaxAttention'
            )
        rows = tuple(key.shape[:-1] if key.dim() == 2 or self.batch_first else key.shape[1::-1])
        if padding is not None and tuple(padding.shape) != rows:
            raise ValueError(
                f'key_padding_mask must be {rows} for a key {tuple(key.shape)}, got '
                f'{tuple(padding.shape)}'
            )
        for argument, mask in dict(key_padding_mask=padding, attn_mask=attn_mask).items():
            if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
                raise ValueError(
                    f'{argument} must have booleans or floats, got {mask.dtype}; call .bool() on it'
                )

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> Tuple[Any, ...]:
        """Queries, keys and values ``(B, heads, N or n, d)``, and the gate ``(B, N, C)``."""
        weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases: Any = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        of_query, of_key, of_value = zip((query, key, value), weights, biases)
        in_full = 'qkv' in self.attn.parts_in_fp32

        def projected(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
            return F.linear(x.to(weight.dtype) if in_full else x, weight, bias)

        with no_autocast(query.device) if in_full else nullcontext():
            q, v = projected(*of_query), projected(*of_value)
            if self.attn.frame.qkv != 'shared_qk':
                k = projected(*of_key)
            elif self.k_proj_weight is None:
                k = q
            else:
                k = q = trains_too(q, [self.k_proj_weight])
        gate = None if self.gate is None else self.gate(query)
        return (*self.attn.heads(Projected(q, k, v, gate), None), gate)

    def _seen(
        self, q: Tensor, k: Tensor, attn_mask: Optional[Tensor], padding: Optional[Tensor]
    ) -> Dict[str, Tensor]:
        """The masks as one of softmax: booleans of what is seen, or numbers to add to scores."""
        masks: List[Tensor] = []
        if padding is not None:
            masks.append(padding[:, None, None])  # (B, 1, 1, n)
        if attn_mask is not None:
            batch, heads, queries, _ = q.shape
            pairs = queries, k.shape[2]
            by_head = attn_mask.dim() == 3
            if attn_mask.shape != ((batch * heads, *pairs) if by_head else pairs):
                raise ValueError(
                    f'attn_mask must be {pairs} or {(batch * heads, *pairs)}, got '
                    f'{tuple(attn_mask.shape)}'
                )
            masks.append(attn_mask.unflatten(0, (batch, heads)) if by_head else attn_mask)
        if not masks:
            return {}
        if all(mask.dtype == torch.bool for mask in masks):
            hidden = masks[0] if len(masks) == 1 else masks[0] | masks[1]
            return dict(mask=~hidden)
        bias: Any = 0
        for mask in masks:
            if mask.dtype == torch.bool:
                mask = q.new_zeros(()).masked_fill(mask, float('-inf'))
            bias = bias + mask.to(q.dtype)
        return dict(mask=bias)

    def _padded(self, mask: Tensor, same: bool, q: Tensor, k: Tensor) -> Tensor:
        """Booleans ``(B, n)`` of a mask of padding for a rule without scores to add to."""
        name = type(self.attn).__name__
        unclear = not same and self.self_attention is None and q.shape[2] == k.shape[2]
        if self.attn.mixes_queries and unclear:
            raise ValueError(
                f'{name} mixes queries too, and key_padding_mask leaves open whether queries are '
                'padded as keys are; set self_attention to True if they are, and else to False'
            )
        if exporting():
            raise ValueError(
                f'{name} cuts padding by lengths that an exported graph has not; export it without '
                'key_padding_mask, or take SoftmaxAttention'
            )
        if mask.dtype == torch.bool:
            return mask
        padded = mask == float('-inf')
        if mask.masked_fill(padded, 0).any():
            raise ValueError(
                f'{name} has no scores, so a key_padding_mask of floats has only 0 and -inf, got '
                f'values from {mask.min()} to {mask.max()}; give booleans'
            )
        return padded

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mixed values ``(B, heads, N, d)``, and zeros where there is no key."""
        if k.shape[2] == 0:
            zeros = v.new_zeros(*q.shape[:3], v.shape[3])
            return trains_too(zeros, [q, k, v, *self.attn.parameters()])
        return self.attn.mix(q, k, v, None)

    def _mixed_without(self, padded: Tensor, q: Tensor, k: Tensor, v: Tensor, same: bool) -> Tensor:
        """Mixed values ``(B, heads, N, d)``, of each sequence without its padding."""
        groups = list(equal_lengths((~padded).sum(1)))
        if [size for size, _ in groups] in ([], [k.shape[2]]):
            return self._mixed(q, k, v)
        real_first = padded.to(torch.uint8).argsort(dim=1, stable=True)
        mixed = []
        for size, rows in groups:
            place = real_first[rows, :size]
            queries = taken(q, rows, place) if same else q[rows]
            keys = queries if k is q else taken(k, rows, place)
            out = self._mixed(queries, keys, taken(v, rows, place))
            if same:
                whole = out.new_zeros(*out.shape[:2], q.shape[2], out.shape[3])
                out = whole.scatter(2, places_of(place, out), out)
            mixed.append(out)
        back = torch.cat([rows for _, rows in groups]).argsort()
        return torch.cat(mixed)[back]


def trains_too(out: Tensor, unused: Iterable[Tensor]) -> Tensor:
    """``out``, with gradients of zeros for tensors that it does not depend on.

    torch's ``DistributedDataParallel`` waits for a gradient of each parameter.
    """
    if torch.is_grad_enabled():
        for tensor in unused:
            out = out + tensor.flatten()[:0].sum().to(out.dtype)  # a sum of no values is 0
    return out
