import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from mmengine.model import BaseModule, ModuleList
from torch import Tensor
from torch.fx import Proxy

from ...checkpoints.strict_loading import StrictLoading
from ..layers import feature_map, tokens_to_map
from ..layers.build import build_token_norm
from . import options
from .freezing import Freezing
from .host_options import HostOptions
from .names import PyramidNames
from .stage import Stage
from .tracing import record_layers

INIT_CFG = [
    dict(type='TruncNormal', layer='Linear', std=0.02, bias=0.0),
    dict(type='Constant', layer='LayerNorm', val=1.0, bias=0.0),
]


class PyramidBackbone(HostOptions, PyramidNames, StrictLoading, Freezing, BaseModule):
    """Stages of transformer blocks, each on a smaller map than the one before.

    A subclass names its ``host``, a function that returns a list of :class:`Stage`, its sizes in
    ``arch_zoo``, and in ``default_attn_cfg`` its changes to the host's attentions.

    Args:
        arch: A name in ``arch_zoo``, or a dict with ``embed_dims``, ``depths``, ``num_heads`` and
            ``ffn_ratios``, each with one entry per stage. Default: the class attribute
            ``default_arch``, ``'tiny'`` unless the family has no such size.
        attn_cfg: Changes to the attentions. A dict without a type, or with the type of a stage's
            attention, changes options: ``dict(num_landmarks=100)``. Another type replaces the
            attention and keeps the host's frame: ``dict(type='SoftmaxAttention')``. A list gives a
            dict or None for each stage, and ``per_block`` for each block of one. ``per_stage``
            gives one value for each stage: ``dict(per_stage=dict(sr_ratio=(8, 4, 2, 1)))``.
        img_size: Side, or height and width, of the training images, for which attentions initialise
            parameters that depend on the size. The forward accepts any size. Default: 224.
        in_channels: Channels of the image. Default: 3.
        out_indices: Stages whose maps are returned, in rising order, as a sequence or one number.
            Negative numbers count from the last stage: a classifier needs -1. Only these stages get
            a norm. Stages after the last of these are not built, so that no parameter is unused.
            Default: all.
        out_type: ``'featmap'`` (default) returns maps, without a class token. ``'cls_token'``
            returns that of the last stage, ``(B, C)``, or both of distilled DeiT, ``(B, 2 * C)``.
        out_norms: Whether the returned maps get a norm, or its config, if it is not that of the
            other norms. Default: the host's choice.
        norm_cfg: Config of every norm of tokens outside of the attentions, such as
            ``dict(type='LN', eps=1e-6)`` or a registered class. Default: the host's LayerNorms.
        act_cfg: Config of the activation in the FFNs, such as
            ``dict(type='GELU', approximate='tanh')``. Default: the host's GELU.
        drop_rate: Dropout rate in the FFNs and on embedded positions. Default: 0.
        drop_path_rate: Stochastic depth rate of the last block, rising from 0. Default: 0.
        frozen_stages: -1 freezes nothing. 0 freezes the stem, which is the first patch embedding
            with its positions. k freezes the stem and the first k stages. Default: -1.
        norm_eval: Whether BatchNorms stay in eval mode during training. Default: False.
        with_cp: Whether blocks recompute their activations in the backward pass. Default: False.
        init_cfg: As in mmengine, but ``type='Pretrained'`` loads strictly, see
            :class:`mmlaplace.engine.StrictLoading`. Default: truncated normal linears.
        **host_options: Arguments of the host's function.

    Raises:
        TypeError: For an unknown option. The message names the known options.
        ValueError: For an unknown or incomplete arch, a value with another number of entries than
            stages, or ``out_indices``, ``out_type``, ``frozen_stages``, ``drop_path_rate``,
            ``img_size``, ``in_channels`` or ``out_norms`` out of range.
    """

    host: Callable[..., List[Stage]]  # a function, without self
    arch_zoo: Dict[str, dict] = {}
    default_arch = 'tiny'
    default_attn_cfg: Union[dict, Sequence, None] = None

    def __init__(
        self,
        arch: Union[str, dict, None] = None,
        attn_cfg: Union[dict, Sequence[Optional[dict]], None] = None,
        img_size: Union[int, Tuple[int, int]] = 224,
        in_channels: int = 3,
        out_indices: Union[int, Sequence[int], None] = None,
        out_type: str = 'featmap',
        out_norms: Union[bool, dict, None] = None,
        norm_cfg: Optional[dict] = None,
        act_cfg: Optional[dict] = None,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: Union[dict, List[dict], None] = None,
        **host_options: Any,
    ) -> None:
        super().__init__(INIT_CFG if init_cfg is None else init_cfg)
        layout = options.with_attention(self.host(**host_options), self.default_attn_cfg)
        layout = options.with_attention(layout, attn_cfg)
        sizes = options.parse_arch(type(self), arch, len(layout))
        self.embed_dims, self.depths = sizes['embed_dims'], sizes['depths']
        self.num_stages = len(layout)
        self.stage_strides = tuple(stage.stride for stage in layout)
        self.out_indices = options.parse_out_indices(out_indices, self.num_stages)
        self.cls_tokens = tuple(stage.num_prefix_tokens for stage in layout)  # before the map's
        self.class_tokens = max(1, layout[-1].num_cls_tokens)  # which a classifier takes
        options.check_ranges(self, frozen_stages, drop_path_rate, out_type)
        options.check_kinds(img_size, in_channels, out_norms)
        self.out_type, self.frozen_stages, self.norm_eval = out_type, frozen_stages, norm_eval
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        self.least_side = layout[0].stride  # of an image, in pixels
        common = (drop_rate, with_cp, norm_cfg, act_cfg)
        rates, resolution = options.drop_path_rates(drop_path_rate, self.depths), self.img_size
        self.stages = ModuleList()
        for i, stage in enumerate(layout[: max(self.out_indices) + 1]):
            resolution = tuple(-(-side // stage.stride) for side in resolution)
            own = [sizes[key][i] for key in ('embed_dims', 'num_heads', 'ffn_ratios')]
            self.stages.append(stage.build(in_channels, *own, resolution, rates[i], *common))
            if not getattr(self.stages[i]['patch_embed'], 'ceil_mode', True):
                self.least_side = math.prod(self.stage_strides[: i + 1])  # or a map would be empty
            in_channels = self.embed_dims[i]
        out_norm = out_norms if isinstance(out_norms, dict) else norm_cfg
        for i in self.out_indices if out_norms is not False else ():
            if layout[i].out_norm is not None or out_norms:
                config = out_norm or layout[i].out_norm or layout[i].norm
                self.add_module(f'norm{i}', build_token_norm(config, self.embed_dims[i]))
        self._freeze_stages()

    @property
    def out_channels(self) -> Tuple[int, ...]:
        """The channels of what the forward returns, one number for each of ``out_indices``."""
        copies = self.class_tokens if self.out_type == 'cls_token' else 1
        return tuple(copies * self.embed_dims[i] for i in self.out_indices)

    def check_images(self, x: Tensor) -> None:
        """Raise a ValueError unless ``x`` is ``(B, C, H, W)`` with sides of ``least_side`` pixels.

        Where torch.fx traces the backbone, ``x`` has no shape, and the trace is prepared instead.
        """
        if isinstance(x, Proxy):
            record_layers(self, x.tracer)
            return
        least = self.least_side
        if x.dim() != 4 or min(x.shape[-2:]) < least:
            raise ValueError(
                f'{type(self).__name__} needs images (B, C, H, W) of at least {least} x {least} '
                f'pixels, got shape {tuple(x.shape)}'
            )

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Images ``(B, in_channels, H, W)`` to the maps ``(B, C_i, ⌈H/s_i⌉, ⌈W/s_i⌉)``.

        There is one map for each of ``out_indices``, in the memory format of the images.

        Raises:
            ValueError: If ``x`` does not have four axes, or has a side under ``least_side``.
        """
        self.check_images(x)
        memory_format, outs = feature_map.memory_format_of(x), []
        for i, stage in enumerate(self.stages):
            x, hw_shape = stage['patch_embed'](x)  # (B, N, C), (H, W)
            if 'position' in stage:
                x = stage['position'](x, hw_shape)  # (B, N, C), or (B, 1 + N, C)
            for block in stage['blocks']:
                x = block(x, hw_shape)
            if 'norm' in stage:
                x = stage['norm'](x)
            if i in self.out_indices:
                norm = getattr(self, f'norm{i}', None)
                out = x if norm is None else norm(x)
                if self.out_type == 'cls_token':
                    outs.append(out[:, : self.class_tokens].flatten(1))  # (B, C), or of two (B, 2C)
                else:
                    out = tokens_to_map(out[:, self.cls_tokens[i] :], hw_shape)  # (B, C, H, W)
                    outs.append(out.contiguous(memory_format=memory_format))
            if i + 1 < len(self.stages):
                x = tokens_to_map(x, hw_shape)  # (B, C, H, W)
        return tuple(outs)
