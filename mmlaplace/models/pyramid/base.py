import inspect
import math
import re
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Set, Tuple, Union

from mmengine.model import ModuleList
from torch import Tensor
from torch.fx import Proxy
from torch.nn.modules.batchnorm import _BatchNorm

from mmlaplace.ops.backend import ceil_div

from ...checkpoints.strict_loading import StrictLoading
from .. import valid_parts
from ..known_options import KnownOptions
from ..layers import feature_map, tokens_to_map
from ..layers.build import build_token_norm
from . import arguments
from .options import with_attention
from .stage import Stage
from .tracing import record_layers

INIT_CFG = [
    dict(type='TruncNormal', layer='Linear', std=0.02, bias=0.0),
    dict(type='Constant', layer='LayerNorm', val=1.0, bias=0.0),
]


class PyramidBackbone(KnownOptions, StrictLoading):
    """Stages of transformer blocks, each on a smaller map than the one before.

    A subclass names its ``host``, a function that returns a list of :class:`Stage`, its sizes in
    ``arch_zoo``, and in ``default_attn_cfg`` its changes to the host's attentions. The arguments of
    the host are options of the subclass.

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
        mask_padding: Whether to leave out the padding of batches, so that an image gets the maps
            that it gets alone, and zeros where it is padded. ``ValidPartsDetDataPreprocessor`` or
            :func:`set_valid_shapes` says which part of an image is valid. Default: False.
        init_cfg: As in mmengine, but ``type='Pretrained'`` loads strictly, see
            :class:`mmlaplace.engine.StrictLoading`. Default: truncated normal linears.
        **host_options: Arguments of the host's function.

    Raises:
        TypeError: For an unknown option. The message names the known options. On the definition of
            a class, for an argument of its host that the backbone itself takes.
        ValueError: For an unknown or incomplete arch, a value with another number of entries than
            stages, or ``out_indices``, ``out_type``, ``frozen_stages``, ``drop_path_rate``,
            ``img_size``, ``in_channels`` or ``out_norms`` out of range.
        RuntimeError: In a forward with ``mask_padding`` in training, for a batch without known
            valid parts, and for BatchNorms that train: set ``norm_eval=True``.
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
        mask_padding: bool = False,
        init_cfg: Union[dict, List[dict], None] = None,
        **host_options: Any,
    ) -> None:
        super().__init__(INIT_CFG if init_cfg is None else init_cfg)
        layout = with_attention(self.host(**host_options), self.default_attn_cfg)
        layout = with_attention(layout, attn_cfg)
        sizes = arguments.parse_arch(type(self), arch, len(layout))
        self.embed_dims = sizes['embed_dims']
        self.depths = sizes['depths']
        self.num_stages = len(layout)
        self.stage_strides = tuple(stage.stride for stage in layout)
        self.out_indices = arguments.parse_out_indices(out_indices, self.num_stages)
        self.cls_tokens = tuple(stage.num_prefix_tokens for stage in layout)  # before the map's
        self.class_tokens = max(1, layout[-1].num_cls_tokens)  # which a classifier takes
        arguments.check_ranges(self, frozen_stages, drop_path_rate, out_type)
        arguments.check_kinds(img_size, in_channels, out_norms)
        self.out_type = out_type
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.mask_padding = mask_padding
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        self.least_side = layout[0].stride  # of an image, in pixels
        rates = arguments.drop_path_rates(drop_path_rate, self.depths)
        resolution = self.img_size
        self.stages = ModuleList()
        for i, stage in enumerate(layout[: max(self.out_indices) + 1]):
            resolution = tuple(-(-side // stage.stride) for side in resolution)
            modules = stage.build(
                in_channels,
                embed_dims=self.embed_dims[i],
                num_heads=sizes['num_heads'][i],
                ffn_ratio=sizes['ffn_ratios'][i],
                resolution=resolution,
                drop_path_rates=rates[i],
                drop_rate=drop_rate,
                with_cp=with_cp,
                norm_cfg=norm_cfg,
                act_cfg=act_cfg,
            )
            self.stages.append(modules)
            if not getattr(modules['patch_embed'], 'ceil_mode', True):
                self.least_side = math.prod(self.stage_strides[: i + 1])  # or a map would be empty
            in_channels = self.embed_dims[i]
        if out_norms is not False:
            out_norm = out_norms if isinstance(out_norms, dict) else norm_cfg
            for i in self.out_indices:
                if layout[i].out_norm is not None or out_norms:
                    config = out_norm or layout[i].out_norm or layout[i].norm
                    self.add_module(f'norm{i}', build_token_norm(config, self.embed_dims[i]))
        self._freeze_stages()

    @property
    def out_channels(self) -> Tuple[int, ...]:
        """The channels of what the forward returns, one number for each of ``out_indices``."""
        copies = self.class_tokens if self.out_type == 'cls_token' else 1
        return tuple(copies * self.embed_dims[i] for i in self.out_indices)

    def map_sides(self, side: int) -> Tuple[int, ...]:
        """The sides of the returned maps of images with a side of so many pixels."""
        sides = []
        for stage, stride in zip(self.stages, self.stage_strides):
            rounds_up = getattr(stage.patch_embed, 'ceil_mode', True)
            side = ceil_div(side, stride) if rounds_up else side // stride
            sides.append(side)
        return tuple(sides[i] for i in self.out_indices)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        host = vars(cls).get('host')
        if host is None:
            return
        if not isinstance(host, staticmethod):  # it is a function, and no method
            cls.host = staticmethod(host)
        arguments_of_host = set(inspect.signature(cls.host).parameters)
        shared = arguments_of_host.intersection(super().known_options())
        if shared:
            raise TypeError(
                f'the host of {cls.__name__} has arguments that the backbone itself takes, '
                f'{sorted(shared)}; rename them in the host'
            )

    @classmethod
    def known_options(cls) -> List[str]:
        """Names of the keyword arguments of the backbone, and of its host."""
        host_options = inspect.signature(cls.host).parameters if hasattr(cls, 'host') else ()
        return list(dict.fromkeys([*super().known_options(), *host_options]))

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
        if self.mask_padding:
            shapes, forwards = valid_parts.parts_of(self, x)
            if shapes is not None:
                sizes = list(zip(*map(self.map_sides, x.shape[-2:])))
                return valid_parts.forward_of_parts(self._forward, x, shapes, sizes, forwards)
        return self._forward(x)

    def _forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """The maps of images that are valid as a whole."""
        self.check_images(x)
        memory_format = feature_map.memory_format_of(x)
        outs = []
        for i, stage in enumerate(self.stages):
            x, hw_shape = stage(x)  # (B, N, C) or (B, 1 + N, C), and (H, W)
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

    def _freeze_stages(self) -> None:
        frozen = []
        if self.frozen_stages >= 0:
            # By attribute, as a stage may be wrapped.
            parts = [getattr(self.stages[0], name) for name in ('patch_embed', 'position')]
            frozen += [part for part in parts if part is not None]
        for i, stage in enumerate(self.stages[: max(self.frozen_stages, 0)]):
            frozen.append(stage)
            if hasattr(self, f'norm{i}'):
                frozen.append(getattr(self, f'norm{i}'))
        for module in frozen:
            module.eval()
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> 'PyramidBackbone':
        """Set the mode, but keep frozen stages, and BatchNorms under ``norm_eval``, in eval."""
        super().train(mode)
        self._freeze_stages()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    @property
    def num_extra_tokens(self) -> int:
        """How many tokens precede those of the last map, as mmpretrain's ``vis_cam.py`` asks."""
        return self.cls_tokens[max(self.out_indices)]

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay, besides norms and biases.

        The modules inside return these names by their own ``no_weight_decay()``.
        :class:`mmlaplace.engine.NoDecayOptimWrapperConstructor` calls this method, and so does
        timm.
        """
        names = set()
        for path, module in self.named_modules():
            if path and hasattr(module, 'no_weight_decay'):
                names |= {f'{path}.{name}' for name in module.no_weight_decay()}
        return names & {name for name, _ in self.named_parameters()}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> Tuple[int, int]:
        """The depth of a parameter, for layer-wise learning rates, and the number of depths.

        The stem has depth 0. Block j, counted through all stages, has depth j + 1. Later patch
        embeddings and positions have the depth of the block after them. The norm of a stage has the
        depth of its last block. Parameters after the last block, or outside ``prefix``, have the
        last depth.

        Args:
            param_name: As in the model's ``named_parameters()``.
            prefix: Prefix of the names of this backbone in the model, such as ``'backbone.'``.
                Default: ''.
        """
        num_layers = sum(self.depths) + 2
        inside = param_name.startswith(prefix)
        kind, *path = (param_name[len(prefix) :] if inside else '').split('.')
        if kind == 'stages':
            stage = int(path[0])
            block = 0  # of patch embeddings and positions, which come before it
            if path[1] == 'blocks':
                block = int(path[2])
            elif path[1] == 'norm':
                block = self.depths[stage] - 1
            elif stage == 0:
                return 0, num_layers
            return sum(self.depths[:stage]) + block + 1, num_layers
        norms = {f'norm{i}': sum(self.depths[: i + 1]) for i in range(self.num_stages - 1)}
        return norms.get(kind, num_layers - 1), num_layers

    def other_outputs(self, names: Collection[str]) -> Set[str]:
        """Names that a checkpoint has or lacks because its model had other ``out_indices``.

        The class token of a classifier is among them, if this backbone has none and returns several
        maps, as PVT's detectors do. So are norms of maps of another kind than the checkpoint's, as
        in SLAB's detectors.

        Args:
            names: The names in the checkpoint, without the prefix of this backbone.

        Raises:
            ValueError: If the names belong to another arch, whose stages have other numbers of
                blocks.
        """
        block = re.compile(r'stages\.(\d+)\.blocks\.(\d+)\.')
        depths: Dict[int, Set[str]] = {}
        for name in names:
            if match := block.match(name):
                depths.setdefault(int(match[1]), set()).add(match[2])
        for i, depth in enumerate(self.depths[: len(self.stages)]):
            if len(depths.get(i, ())) not in (0, depth):
                raise ValueError(
                    f'this checkpoint is for another arch: its stage {i} has {len(depths[i])} '
                    f'blocks, and that of this {type(self).__name__} has {depth}; build the model '
                    'with the arch of the checkpoint'
                )
        behind = tuple(f'stages.{i}.' for i in depths if i >= len(self.stages))
        other = {name for name in names if name.startswith(behind)}
        if len(self.out_indices) > 1 and not any(self.cls_tokens):
            other |= {name for name in names if re.search(r'\.position\.cls_\w+$', name)}
        # A checkpoint with norms has that of its last stage. In one without, no norm is missing
        # because of other outputs.
        last_norm = f'norm{max(depths, default=0)}.'
        has_norms = any(name.startswith(last_norm) for name in names)
        for i in range(self.num_stages):
            saved = {name for name in names if name.startswith(f'norm{i}.')}
            norm = getattr(self, f'norm{i}', None)
            own = set() if norm is None else {f'norm{i}.{name}' for name in norm.state_dict()}
            if not own or (has_norms and not own & saved):
                other |= saved | own
        return other
