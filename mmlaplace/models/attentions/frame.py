"""The parts of an attention around its mixing rule, as data."""

from dataclasses import dataclass, fields

from ..layers.checks import check_counts
from ..layers.feature_map import FILTERS_PER
from ..layers.position import ROPE_FORMS

# Projections that the linear of all tokens makes, and those that a linear of the key map makes.
QKV_FORMS = {'qkv': ('qkv', ''), 'shared_qk': ('qv', ''), 'q_kv': ('q', 'kv'), 'qk': ('qk', '')}
ROPE_ON = ('query_key', 'features')


@dataclass(frozen=True)
class Frame:
    """The parts of a :class:`QKVAttention` around its mixing rule.

    An attention declares the frame of its paper, ``frame = Frame(gate=True, lepe_kernel=5)``. A
    host may change fields for all of its attentions. A config changes any field by its name, such
    as ``attn_cfg=dict(rope=False)``. Each field here serves three papers. For the needs of a single
    paper, its class overrides a step.

    Attributes:
        qkv: Linears that make queries, keys and values. ``'qkv'`` (default): one linear for all
            three. ``'shared_qk'``: keys are the queries. ``'q_kv'``: one linear for queries, and
            one for keys and values. ``'qk'``: values are the input.
        qkv_bias: Whether these linears have a bias. Default: True.
        sr_ratio: Side r of the spatial reduction. A convolution r x r of stride r and a LayerNorm
            reduce the map of keys and values, as in PVT. If r does not divide the sides of the map,
            it is zero-padded. Keys and values then have a linear of their own. Default: 1, none.
        gate: Whether a linear of the input multiplies the output. Default: False.
        key_positions: Whether a learned position is added to each key. It is stored for
            ``input_resolution`` and resized bilinearly for other maps. Default: False.
        rope: Whether there are 2-D rotary positions. Default: False.
        rope_form: How rotary positions pair the channels, and what a position is, see
            :class:`RotaryEmbedding2D`. ``'half'`` (default), ``'pairs'``, ``'centred'`` or
            ``'reference'``.
        rope_on: The tensors that rotary positions rotate. ``'query_key'`` (default): queries and
            keys, before the mixing rule. ``'features'``: tensors that the mixing rule passes to
            ``self.rotary``, such as the features in the numerator of RALA, MALA and NaLaFormer.
        lepe_kernel: Odd kernel size of a depthwise convolution of V, which is added to the mixed
            values. It is the "locally enhanced positional encoding" of CSWin. 0 (default) leaves it
            out.
        lepe_filters: How this convolution shares filters. ``'channel'`` (default): one for each
            channel. ``'head'``: one for each head. ``'head_channel'``: one for each channel of a
            head, the same in all heads.
        lepe_bias: Whether these filters have a bias. Default: True.
        second_lepe_kernel: Odd kernel size of a second convolution of V, one filter for each
            channel with a bias, as FLatten, SLAB and InLine have on CSWin. It needs ``sr_ratio=1``.
            Default: 0, none.
        proj: Whether the attention ends with a linear. Default: True.
        proj_drop: Dropout rate after this linear. Default: 0.

    Raises:
        ValueError: For an unknown form, a ratio or kernel out of range, or fields that exclude
            each other.

    Examples:
        >>> from mmlaplace.models import Frame, PolaAttention
        >>> PolaAttention.frame.lepe_kernel
        5
        >>> Frame(sr_ratio=2, qkv='shared_qk')
        Traceback (most recent call last):
        ...
        ValueError: sr_ratio=2 needs a linear layer for keys and values, got qkv='shared_qk'; ...
    """

    qkv: str = 'qkv'
    qkv_bias: bool = True
    sr_ratio: int = 1
    gate: bool = False
    key_positions: bool = False
    rope: bool = False
    rope_form: str = 'half'
    rope_on: str = 'query_key'
    lepe_kernel: int = 0
    lepe_filters: str = 'channel'
    lepe_bias: bool = True
    second_lepe_kernel: int = 0
    proj: bool = True
    proj_drop: float = 0.0

    def __post_init__(self) -> None:
        for name, known in (
            ('qkv', tuple(QKV_FORMS)),
            ('rope_form', tuple(ROPE_FORMS)),
            ('rope_on', ROPE_ON),
            ('lepe_filters', FILTERS_PER),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f'{name} must be one of {known}, got {getattr(self, name)!r}')
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise ValueError(f'{field.name} must be True or False, got {value!r}')
        check_counts(sr_ratio=self.sr_ratio)
        for name in ('lepe_kernel', 'second_lepe_kernel'):
            kernel = getattr(self, name)
            if not isinstance(kernel, int) or kernel < 0 or (kernel and kernel % 2 == 0):
                raise ValueError(f'{name} must be odd, or 0 for none, got {kernel!r}')
        if self.sr_ratio > 1 and self.second_lepe_kernel:
            raise ValueError(
                f'second_lepe_kernel={self.second_lepe_kernel} needs queries and keys on one map, '
                f'got sr_ratio={self.sr_ratio}; set one of them to its default'
            )
        if self.sr_ratio > 1 and self.qkv in ('shared_qk', 'qk'):
            raise ValueError(
                f'sr_ratio={self.sr_ratio} needs a linear layer for keys and values, got '
                f"qkv={self.qkv!r}; take qkv='qkv' or 'q_kv', or sr_ratio=1"
            )
        if self.sr_ratio > 1 and self.rope:
            raise ValueError(
                f'rotary positions need queries and keys on one map, got sr_ratio={self.sr_ratio} '
                'and rope=True; set one of rope=False and sr_ratio=1'
            )
        if self.key_positions and self.qkv == 'shared_qk':
            raise ValueError(
                "key_positions=True needs keys that are not the queries, got qkv='shared_qk'; set "
                'key_positions=False'
            )
