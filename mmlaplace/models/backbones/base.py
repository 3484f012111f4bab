import re
from os import PathLike
from typing import Collection, Dict, List, Optional, Sequence, Set, Tuple, Union

import torch
import torch.nn as nn
from mmengine.model import BaseModule, ModuleDict, ModuleList, PretrainedInit, update_init_info
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ...engine.checkpoint import load_weights, resize_weights
from ..layers import OverlapPatchEmbed, PositionEmbedding, TransformerBlock, tokens_to_map
from ..layers.build import build_token_norm
from ..options import KnownOptions

ARCH_KEYS = ('embed_dims', 'depths', 'num_heads', 'ffn_ratios')
PRETRAINED_KEYS = ('checkpoint', 'prefix', 'map_location', 'min_matched')
INIT_CFG = [
    dict(type='TruncNormal', layer='Linear', std=0.02, bias=0.0),
    dict(type='Constant', layer='LayerNorm', val=1.0, bias=0.0),
]


class PyramidBackbone(KnownOptions, BaseModule):
    """Stages of transformer blocks at strides 4, 8, 16 and 32.

    Subclasses name their sizes in ``arch_zoo`` and their ``default_attn_cfg``, and override the
    class attributes and :meth:`build_patch_embed` and :meth:`build_block` where they differ from
    overlapping patch embeddings and pre-norm blocks.

    Args:
        arch: A name in ``arch_zoo``, or a dict with ``embed_dims``, ``depths``, ``num_heads`` and
            ``ffn_ratios``, each with one entry per stage. Default: the class attribute
            ``default_arch``, ``'tiny'`` unless the family has no such size.
        attn_cfg: Config of the attention, such as ``dict(type='SoftmaxAttention')``. A list or
            tuple as a value has one entry per stage; a list of configs has one per stage. A
            config without a type changes options of ``default_attn_cfg``, in the stages that have
            the attention of the first. Default: ``default_attn_cfg``.
        img_size: Side, or height and width, of the training images, at which attentions
            initialise what depends on size. The forward accepts any. Default: 224.
        in_channels: Channels of the image. Default: 3.
        out_indices: Stages whose maps are returned, in rising order, as a sequence or one number.
            Negative ones count from the last stage: -1 is what a classifier wants. Only these
            stages get a norm. Stages after the last of them are not built, so that no parameter is
            unused. Default: all.
        out_norms: Whether the maps returned get a LayerNorm. Default: the class attribute
            ``default_out_norms``, True unless the family has it otherwise.
        norm_cfg: Config of every norm of tokens outside of the attentions, such as
            ``dict(type='LN', eps=1e-6)`` or a registered class. Default: the family's own
            LayerNorms.
        act_cfg: Config of the activation in the FFNs, such as
            ``dict(type='GELU', approximate='tanh')``. Default: the family's own GELU.
        drop_rate: Dropout rate in the FFNs and on embedded positions. Default: 0.
        drop_path_rate: Stochastic depth rate of the last block, rising linearly from 0 at the
            first. Default: 0.
        frozen_stages: -1 freezes nothing, 0 the stem (the first patch embedding and positions), k
            the stem and the first k stages. Default: -1.
        norm_eval: Whether BatchNorms stay in eval mode while training. Default: False.
        with_cp: Whether blocks recompute their activations in the backward pass. Default: False.
        init_cfg: As in mmengine, but ``type='Pretrained'`` loads strictly, see
            :meth:`init_weights`. Default: truncated normal linears.

    Raises:
        TypeError: For an unknown option; names those that there are.
        ValueError: For an unknown or incomplete arch, a value with another number of entries than
            stages, or ``out_indices``, ``frozen_stages`` or ``drop_path_rate`` out of range.
    """

    arch_zoo: Dict[str, dict] = {}
    default_arch = 'tiny'
    default_attn_cfg: Union[dict, Sequence[dict]] = {}
    stage_strides = (4, 2, 2, 2)
    default_out_norms = True
    default_norm_cfg = dict(type='LN', eps=1e-6)  # of the blocks and of the maps returned
    absolute_positions = False  # whether tokens get a learned position in front of each stage

    def __init__(
        self,
        arch: Union[str, dict, None] = None,
        attn_cfg: Union[dict, Sequence[dict], None] = None,
        img_size: Union[int, Tuple[int, int]] = 224,
        in_channels: int = 3,
        out_indices: Union[int, Sequence[int], None] = None,
        out_norms: Optional[bool] = None,
        norm_cfg: Optional[dict] = None,
        act_cfg: Optional[dict] = None,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: Union[dict, List[dict], None] = None,
    ) -> None:
        super().__init__(INIT_CFG if init_cfg is None else init_cfg)
        settings = self._arch_settings(self.default_arch if arch is None else arch)
        self.embed_dims = settings['embed_dims']
        self.depths = settings['depths']
        self.num_stages = len(self.depths)
        if not -1 <= frozen_stages <= self.num_stages:
            raise ValueError(f'frozen_stages must be -1 to {self.num_stages}, got {frozen_stages}')
        if not isinstance(drop_path_rate, (int, float)) or not 0 <= drop_path_rate < 1:
            raise ValueError(
                f'drop_path_rate must be one number in [0, 1), the rate of the last block, got '
                f'{drop_path_rate}'
            )
        self.out_indices = self._out_indices(out_indices)
        # Where they were given, for every layer alike; else each layer has its own default.
        self.norm_options = {} if norm_cfg is None else dict(norm_cfg=norm_cfg)
        self.act_options = {} if act_cfg is None else dict(act_cfg=act_cfg)
        self.out_norms = self.default_out_norms if out_norms is None else out_norms
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval

        attn_cfgs = self._attn_cfg_per_stage(attn_cfg)
        self.img_size = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        resolution = self.img_size
        total = sum(self.depths)
        drop_path_rates = [drop_path_rate * i / max(total - 1, 1) for i in range(total)]
        # mmengine's containers, as init_weights goes down through no others.
        self.stages = ModuleList()
        # Stages after the last output would have no gradient, so they are not built.
        for i, depth in enumerate(self.depths[: max(self.out_indices) + 1]):
            resolution = tuple(-(-side // self.stage_strides[i]) for side in resolution)
            stage = ModuleDict()
            stage['patch_embed'] = self.build_patch_embed(
                i, in_channels if i == 0 else self.embed_dims[i - 1]
            )
            if self.absolute_positions:
                stage['position'] = self.build_position(i, resolution, drop_rate)
            attn = dict(
                attn_cfgs[i],
                embed_dims=self.embed_dims[i],
                num_heads=settings['num_heads'][i],
                input_resolution=resolution,
            )
            stage['blocks'] = ModuleList(
                self.build_block(
                    i,
                    j,
                    attn_cfg=attn,
                    embed_dims=self.embed_dims[i],
                    ffn_ratio=settings['ffn_ratios'][i],
                    drop_rate=drop_rate,
                    drop_path_rate=drop_path_rates[sum(self.depths[:i]) + j],
                    with_cp=with_cp,
                )
                for j in range(depth)
            )
            self.stages.append(stage)
        for i in self.out_indices if self.out_norms else ():
            norm = build_token_norm(
                self.norm_options.get('norm_cfg', self.default_norm_cfg), self.embed_dims[i]
            )
            self.add_module(f'norm{i}', norm)
        self._freeze_stages()

    def build_patch_embed(self, stage: int, in_channels: int) -> nn.Module:
        """What makes the tokens of a stage: ``(B, C_in, H, W) -> (B, N, C), (H', W')``."""
        return OverlapPatchEmbed(
            in_channels,
            self.embed_dims[stage],
            kernel_size=7 if stage == 0 else 3,
            stride=self.stage_strides[stage],
            **self.norm_options,
        )

    def build_position(
        self, stage: int, resolution: Tuple[int, int], drop_rate: float
    ) -> nn.Module:
        """What adds positions to the tokens of a stage, where ``absolute_positions``."""
        return PositionEmbedding(self.embed_dims[stage], resolution, drop_rate=drop_rate)

    def build_block(
        self, stage: int, block: int, ffn_cfg: Optional[dict] = None, **kwargs
    ) -> nn.Module:
        """A block, from the arguments of :class:`TransformerBlock`.

        The backbone's own ``norm_cfg`` and ``act_cfg``, where given, replace those given here.
        """
        options = dict(dict(norm_cfg=self.default_norm_cfg), **kwargs)
        options.update(self.norm_options)
        return TransformerBlock(ffn_cfg=dict(ffn_cfg or {}, **self.act_options), **options)

    def _out_indices(self, out_indices: Union[int, Sequence[int], None]) -> Tuple[int, ...]:
        """The stages to return, each by its number from 0."""
        if out_indices is None:
            return tuple(range(self.num_stages))
        given = (out_indices,) if isinstance(out_indices, int) else tuple(out_indices)
        if not given or not all(
            isinstance(i, int) and -self.num_stages <= i < self.num_stages for i in given
        ):
            raise ValueError(
                f'out_indices must name stages 0 to {self.num_stages - 1}, or '
                f'-{self.num_stages} to -1 from the last, got {out_indices}'
            )
        stages = tuple(i % self.num_stages for i in given)
        if list(stages) != sorted(set(stages)):
            raise ValueError(
                f'out_indices must rise, as maps are returned from the first stage to the last, '
                f'got {out_indices}, which is {stages}; write {tuple(sorted(set(stages)))}'
            )
        return stages

    def _arch_settings(self, arch: Union[str, dict]) -> dict:
        if isinstance(arch, str):
            if arch not in self.arch_zoo:
                raise ValueError(
                    f'{type(self).__name__} has no arch {arch!r}; known: {list(self.arch_zoo)}, '
                    f'or a dict with {ARCH_KEYS}'
                )
            arch = self.arch_zoo[arch]
        missing = [key for key in ARCH_KEYS if key not in arch]
        unknown = [key for key in arch if key not in ARCH_KEYS]
        if missing or unknown:
            raise ValueError(
                f'a dict arch has the keys {ARCH_KEYS}; missing: {missing}, unknown: {unknown}'
            )
        for key in ARCH_KEYS:
            values = arch[key]
            if not isinstance(values, (list, tuple)) or len(values) != len(self.stage_strides):
                raise ValueError(
                    f'arch[{key!r}] must have one entry for each of the {len(self.stage_strides)} '
                    f'stages, got {values}'
                )
            if min(values) <= 0:
                raise ValueError(f'arch[{key!r}] must be positive in every stage, got {values}')
        return {key: tuple(arch[key]) for key in ARCH_KEYS}

    def _attn_cfg_per_stage(self, attn_cfg: Union[dict, Sequence[dict], None]) -> List[dict]:
        if not attn_cfg:
            attn_cfg = self.default_attn_cfg
        if not isinstance(attn_cfg, dict):
            configs = [dict(config) for config in attn_cfg]
            if len(configs) != self.num_stages:
                raise ValueError(
                    f'attn_cfg must be one config or one for each of the {self.num_stages} '
                    f'stages, got {len(configs)}'
                )
            return configs
        per_stage = {
            key: value
            for key, value in attn_cfg.items()
            if isinstance(value, (list, tuple)) and key != 'init_cfg'
        }
        for key, value in per_stage.items():
            if len(value) != self.num_stages:
                raise ValueError(
                    f'attn_cfg[{key!r}] must be one value or one for each of the '
                    f'{self.num_stages} stages, got {value}'
                )
        configs = [
            dict(attn_cfg, **{key: value[i] for key, value in per_stage.items()})
            for i in range(self.num_stages)
        ]
        if 'type' in attn_cfg:
            return configs
        defaults = self._attn_cfg_per_stage(None)
        return [
            dict(default, **config) if default['type'] == defaults[0]['type'] else default
            for default, config in zip(defaults, configs)
        ]

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Images ``(B, in_channels, H, W)`` to the maps ``(B, C_i, ⌈H/s_i⌉, ⌈W/s_i⌉)``.

        Strides s are 4, 8, 16, 32; one map for each of ``out_indices``, in rising order of stage.
        Maps have the memory format of the images: channels_last in, channels_last out.

        Raises:
            ValueError: If ``x`` has not four axes, or a side is shorter than the first stride.
        """
        if x.dim() != 4 or min(x.shape[-2:]) < self.stage_strides[0]:
            raise ValueError(
                f'{type(self).__name__} needs images (B, C, H, W) of at least '
                f'{self.stage_strides[0]} x {self.stage_strides[0]} pixels, got shape '
                f'{tuple(x.shape)}'
            )
        memory_format = torch.contiguous_format
        if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
            memory_format = torch.channels_last
        outs = []
        for i, stage in enumerate(self.stages):
            x, hw_shape = stage['patch_embed'](x)
            if self.absolute_positions:
                x = stage['position'](x, hw_shape)
            for block in stage['blocks']:
                x = block(x, hw_shape)
            if i in self.out_indices:
                out = getattr(self, f'norm{i}')(x) if self.out_norms else x
                out = self.output(i, out, hw_shape)
                outs.append(out.contiguous(memory_format=memory_format) if out.dim() == 4 else out)
            if i + 1 < len(self.stages):
                x = tokens_to_map(x, hw_shape)
        return tuple(outs)

    def output(self, stage: int, tokens: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """What is returned of a stage's tokens: their map ``(B, C, H, W)``."""
        return tokens_to_map(tokens, hw_shape)

    def _freeze_stages(self) -> None:
        frozen = []
        if self.frozen_stages >= 0:
            frozen += [stem for name, stem in self.stages[0].items() if name != 'blocks']
        for i, stage in enumerate(self.stages[: max(self.frozen_stages, 0)]):
            frozen.append(stage)
            if i in self.out_indices and self.out_norms:
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

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters that are not to decay, norms and biases aside.

        These are what the modules inside name by a ``no_weight_decay()`` of their own.
        :class:`mmlaplace.engine.NoDecayOptimWrapperConstructor` asks for them, and so does timm.
        """
        named = {
            f'{path}.{name}'
            for path, module in self.named_modules()
            if path and hasattr(module, 'no_weight_decay')
            for name in module.no_weight_decay()
        }
        return named & {name for name, _ in self.named_parameters()}

    def get_layer_depth(self, param_name: str, prefix: str = '') -> Tuple[int, int]:
        """The depth of a parameter, for layer-wise learning rates, and the number of depths.

        The stem has depth 0, block j (counted through all stages) j + 1; later patch embeddings and
        positions belong to the block behind them, the norm of a stage to its last block. What is
        behind the last block, or outside ``prefix``, has the last depth.

        Args:
            param_name: As in the model's ``named_parameters()``.
            prefix: Of this backbone in the model, such as ``'backbone.'``. Default: ''.
        """
        num_layers = sum(self.depths) + 2
        name = param_name[len(prefix) :] if param_name.startswith(prefix) else ''
        in_stage = re.match(r'stages\.(\d+)\.(?:patch_embed\.|position\.|blocks\.(\d+)\.)', name)
        if in_stage:
            stage, block = int(in_stage[1]), in_stage[2]
            if block is None and stage == 0:
                return 0, num_layers
            return sum(self.depths[:stage]) + int(block or 0) + 1, num_layers
        stage_norm = re.match(r'norm(\d+)\.', name)
        if stage_norm and int(stage_norm[1]) < self.num_stages - 1:
            return sum(self.depths[: int(stage_norm[1]) + 1]), num_layers
        return num_layers - 1, num_layers

    def init_weights(self) -> None:
        """As in mmengine, but ``type='Pretrained'`` in ``init_cfg`` goes by :func:`load_weights`.

        Its keys are ``checkpoint``, a path or address, ``prefix`` (found where absent),
        ``map_location`` and ``min_matched``; it comes behind all other entries.

        Raises:
            ValueError: For another key, no checkpoint, or one that does not fit.
        """
        init_cfgs = [self.init_cfg] if isinstance(self.init_cfg, dict) else self.init_cfg or []
        pretrained = [cfg for cfg in init_cfgs if cfg['type'] in ('Pretrained', PretrainedInit)]
        if self.is_init or not pretrained:
            super().init_weights()
            return
        if not hasattr(self, '_params_init_info'):
            # mmengine's record of what initialised a parameter ends with the outermost call, which
            # this must not be for the weights loaded last to get into it.
            ModuleDict(dict(backbone=self)).init_weights()
            return
        settings = [{k: v for k, v in cfg.items() if k != 'type'} for cfg in pretrained]
        for cfg in settings:
            unknown = [key for key in cfg if key not in PRETRAINED_KEYS]
            if unknown or not isinstance(cfg.get('checkpoint'), (str, PathLike)):
                raise ValueError(
                    f"an init_cfg of type='Pretrained' has a checkpoint and the keys "
                    f'{PRETRAINED_KEYS}, got {cfg}; unknown: {unknown}. The checkpoint is a path '
                    'or address; random weights need no such init_cfg'
                )
        given = self.init_cfg
        self.init_cfg = [cfg for cfg in init_cfgs if cfg not in pretrained]
        try:
            super().init_weights()
        finally:
            self.init_cfg = given
        self.is_init = False  # as long as it can fail
        for cfg in settings:
            load_weights(self, **cfg)
            update_init_info(self, f'Loaded from {cfg["checkpoint"]}')
        self.is_init = True

    def other_outputs(self, names: Collection[str]) -> Set[str]:
        """Names that a checkpoint has, or lacks, because its ``out_indices`` are others.

        Args:
            names: In the checkpoint, without the prefix of this backbone.

        Raises:
            ValueError: If they are another arch's: a stage has another number of blocks.
        """
        block = re.compile(r'stages\.(\d+)\.blocks\.(\d+)\.')
        depths: Dict[int, Set[str]] = {}
        for match in filter(None, map(block.match, names)):
            depths.setdefault(int(match[1]), set()).add(match[2])
        for i, depth in enumerate(self.depths[: len(self.stages)]):
            if len(depths.get(i, ())) not in (0, depth):
                raise ValueError(
                    f'this checkpoint is for another arch: its stage {i} has {len(depths[i])} '
                    f'blocks, that of this {type(self).__name__} {depth}'
                )
        behind = tuple(f'stages.{i}.' for i in depths if i >= len(self.stages))
        other = {name for name in names if name.startswith(behind)}
        # With norms, a checkpoint has that of its last stage; without, none is of other outputs.
        last_norm = f'norm{max(depths, default=0)}.'
        has_norms = any(name.startswith(last_norm) for name in names)
        for i in range(self.num_stages):
            theirs = {name for name in names if name.startswith(f'norm{i}.')}
            if not hasattr(self, f'norm{i}'):
                other |= theirs
            elif has_norms and not theirs:
                other |= {f'norm{i}.{name}' for name in getattr(self, f'norm{i}').state_dict()}
        return other

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args, **kwargs) -> None:
        """Resize what depends on the image size, by whatever way weights are loaded.

        A module that owns a tensor of such a shape defines ``resize_weight(name, value)``. What
        does not fit is collected by PyTorch, which raises, and by mmengine, which may only log.
        """
        resize_weights(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
