"""A backbone of mmlaplace as a model of timm."""

import itertools
import operator
from contextlib import nullcontext
from typing import Any, Dict, List, Optional, Set, Tuple, Union

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from timm.layers import global_pool_nlc, is_scriptable
from timm.models._features import feature_take_indices
from torch import Tensor

from ..checkpoints import load_weights
from ..models.initialising import initialise
from ..models.layers import feature_map, map_to_tokens, tokens_to_map

# Options of a backbone that the model sets itself.
SET_BY_THE_MODEL = ('in_channels', 'out_indices', 'out_type')
POOLS = ('avg', 'max', 'avgmax', 'token', '')


class Head(nn.ModuleDict):
    """Dropout and a linear. It is called, so that hooks of it act."""

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self['drop'](x)
        return x if pre_logits else self['fc'](x)


class TimmClassifier(nn.Module):
    """A backbone of mmlaplace and a linear classifier, with the methods of timm's models.

    Its tensors have the names of mmpretrain's ``ImageClassifier``, ``backbone.*`` and
    ``head.fc.*``, so checkpoints of either load into the other. As there, the linear begins with a
    standard deviation of 0.01.

    Features are the maps after the last block of each stage. A host of one stage gives those of
    each block. They have no norm, as in timm's Swin. A class token is not in them.

    Args:
        backbone: Class of the backbone.
        arch: As in :class:`PyramidBackbone`.
        num_classes: Classes of the classifier. 0 leaves it out. Default: 1000.
        global_pool: ``'avg'``, ``'max'`` or ``'avgmax'`` over the tokens of the last stage,
            ``'token'`` for its class token, or ``''`` for none, with ``num_classes=0``.
            Default: the class token where there is one, else the mean.
        in_chans: Channels of the image. Default: 3.
        img_size: Side, or height and width, of the training images. The forward accepts any.
            Default: 224.
        neck: Config of a neck of mmlaplace, which pools the last map. ``global_pool`` is ``'avg'``
            then, or ``''``, which leaves it out. Default: none.
        drop_rate: Dropout rate before the linear. Default: 0.
        proj_drop_rate: Dropout rate in the FFNs and on embedded positions. Default: 0.
        drop_path_rate: Stochastic depth rate of the last block, rising from 0. Default: 0.
        device: Device of the parameters. Default: torch's default.
        dtype: Dtype of the parameters. Default: torch's default.
        **backbone_options: Further arguments of the backbone, such as ``attn_cfg``.

    Raises:
        TypeError: For an unknown option. The message names the known ones.
        ValueError: For an unknown ``global_pool``, one that the model cannot do, or under timm's
            ``scriptable=True``, or what the backbone raises.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LaplacianFormer
        >>> from mmlaplace.timm import TimmClassifier
        >>> model = TimmClassifier(LaplacianFormer, 'micro', num_classes=10)
        >>> model(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        backbone: Any,
        arch: Union[str, dict, None] = None,
        num_classes: int = 1000,
        global_pool: Optional[str] = None,
        in_chans: int = 3,
        img_size: Union[int, Tuple[int, int]] = 224,
        neck: Optional[Dict[str, Any]] = None,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device: Union[str, torch.device, None] = None,
        dtype: Optional[torch.dtype] = None,
        **backbone_options: Any,
    ) -> None:
        super().__init__()
        if is_scriptable():
            raise ValueError(
                f'{backbone.__name__} cannot be compiled by torch.jit.script, so scriptable=True '
                'cannot be had; leave it out and use torch.compile, torch.export or, for images of '
                'one size, torch.jit.trace'
            )
        backbone.check_options(backbone_options, hidden=SET_BY_THE_MODEL)
        with nullcontext() if device is None else torch.device(device):
            self.backbone = backbone(
                arch=arch,
                img_size=img_size,
                in_channels=in_chans,
                out_indices=-1,
                drop_rate=proj_drop_rate,
                drop_path_rate=drop_path_rate,
                **backbone_options,
            )
            self.neck = MODELS.build(neck) if neck else None
        for part in filter(None, (self.backbone, self.neck)):
            part.to(device=device, dtype=dtype)
            if not next(part.parameters()).is_meta:  # there are values
                initialise(part)
        host = self.backbone
        if host.class_tokens > 1:
            raise ValueError(
                'with_dist_token=True has two class tokens, and this classifier reads one; take '
                "timm's own deit_*_distilled, or mmlaplace.get_model"
            )
        self.in_chans = in_chans
        self.num_features = host.embed_dims[-1]
        self.head_hidden_size = neck['out_channels'] if neck else self.num_features
        self.num_prefix_tokens = host.cls_tokens[-1]
        # The block after which each feature is taken, by its stage and its number there.
        self._taps = [(i, depth - 1) for i, depth in enumerate(host.depths)]
        if host.num_stages == 1:
            self._taps = [(0, j) for j in range(host.depths[0])]
        strides = list(itertools.accumulate(host.stage_strides, operator.mul))
        self.feature_info = [
            dict(
                num_chs=host.embed_dims[i],
                reduction=strides[i],
                module=f'backbone.stages.{i}.blocks.{j}',
            )
            for i, j in self._taps
        ]
        self.head = Head(dict(drop=nn.Dropout(drop_rate)))
        self.global_pool = 'token' if self.num_prefix_tokens else 'avg'
        self.reset_classifier(num_classes, global_pool)

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay, besides norms and biases."""
        return {f'backbone.{name}' for name in self.backbone.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> Dict[str, Any]:
        """Patterns of parameter names by depth, which timm's layer-wise learning rates take.

        The depths are those of the backbone's ``get_layer_depth``. With ``coarse`` they are stages.
        """
        stage = r'^backbone\.stages\.(\d+)\.'
        fine = [(stage + r'(?:patch_embed|position)\.', (0,)), (stage + r'blocks\.(\d+)\.', None)]
        return dict(
            stem=r'^backbone\.stages\.0\.(?:patch_embed|position)\.',
            blocks=stage if coarse else fine,
        )

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Set the blocks' ``with_cp``: whether the backward pass recomputes activations."""
        for stage in self.backbone.stages:
            for block in stage['blocks']:
                block.with_cp = enable

    def get_classifier(self) -> nn.Module:
        """The linear, or an identity where ``num_classes`` is 0."""
        return self.head['fc']

    def reset_classifier(self, num_classes: int, global_pool: Optional[str] = None) -> None:
        """Make a new linear, on the device and of the dtype of the backbone.

        Args:
            num_classes: 0 leaves it out.
            global_pool: As in the class. Default: as it is.

        Raises:
            ValueError: For a ``num_classes`` that is no number from 0, and an unknown
                ``global_pool``, or one that the model cannot do. The model is then unchanged.
        """
        pool = self.global_pool if global_pool is None else global_pool
        if not isinstance(num_classes, int) or num_classes < 0:
            raise ValueError(f'num_classes must be a number from 0, got {num_classes!r}')
        if pool not in POOLS:
            raise ValueError(f'global_pool must be one of {POOLS}, got {pool!r}')
        if pool == 'token' and not self.num_prefix_tokens:
            raise ValueError("global_pool='token' needs a class token; take global_pool='avg'")
        if self.neck is not None and pool not in ('avg', ''):
            raise ValueError(
                f'the {type(self.neck).__name__} of this model takes the mean of the map, so '
                f"global_pool must be 'avg', or '' without classes, got {pool!r}"
            )
        self.num_classes, self.global_pool = num_classes, pool
        self.head['fc'] = nn.Identity()
        if num_classes:
            like = next(self.backbone.parameters())
            linear = nn.Linear(
                self.head_hidden_size, num_classes, device=like.device, dtype=like.dtype
            )
            nn.init.normal_(linear.weight, std=0.01)
            nn.init.zeros_(linear.bias)
            self.head['fc'] = linear
        self.head.train(self.training)

    def _norm(self, x: Tensor, stage: int) -> Tensor:
        """Tokens after the norm of the map of a stage, which the last may have."""
        norm = getattr(self.backbone, f'norm{stage}', None)
        return x if norm is None else norm(x)

    def _norms(self, x: Tensor, stage: int) -> Tensor:
        """Tokens after the norms that come behind the blocks of a stage."""
        own = self.backbone.stages[stage].norm
        return self._norm(x if own is None else own(x), stage)

    def _map(
        self, x: Tensor, stage: int, hw_shape: Tuple[int, int], memory_format: torch.memory_format
    ) -> Tensor:
        """The map ``(B, C, H, W)`` of tokens, without a class token."""
        x = tokens_to_map(x[:, self.backbone.cls_tokens[stage] :], hw_shape)
        return x.contiguous(memory_format=memory_format)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: Union[int, List[int], None] = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
        return_prefix_tokens: bool = False,
    ) -> Union[list, Tuple[Tensor, list]]:
        """The result of :meth:`forward_features`, and features of earlier stages.

        Args:
            x: Images ``(B, in_chans, H, W)``.
            indices: Which features, or how many of the last ones. Default: all.
            norm: Whether those of the last stage get its norm. Default: False.
            stop_early: Whether to end after the last feature that is wanted. Default: False.
            output_fmt: Only ``'NCHW'`` (default).
            intermediates_only: Whether to return only the list of features. Default: False.
            return_prefix_tokens: Whether each feature of a model with a class token is a pair: the
                map, and the tokens of no place ``(B, T, C)``, or None where that stage has none.
                Default: False.

        Raises:
            ValueError: For another ``output_fmt``, or images smaller than a patch.
        """
        if output_fmt != 'NCHW':
            raise ValueError(f"output_fmt must be 'NCHW', got {output_fmt!r}")
        wanted, last = feature_take_indices(len(self._taps), indices)
        places = {self._taps[index] for index in wanted}
        memory_format, features = feature_map.memory_format_of(x), []
        self.backbone.check_images(x)
        for stage, layers in enumerate(self.backbone.stages):
            after = {block for of_stage, block in places if of_stage == stage}
            stop = stop_early and stage == self._taps[last][0]
            x, hw_shape, *found = layers(x, after, stop)
            for out in found:
                out = self._norms(out, stage) if norm else out
                feature: Any = self._map(out, stage, hw_shape, memory_format)
                if return_prefix_tokens and self.num_prefix_tokens:
                    count = self.backbone.cls_tokens[stage]
                    feature = (feature, out[:, :count] if count else None)
                features.append(feature)
            if stop:
                break
            if stage + 1 < len(self.backbone.stages):
                x = tokens_to_map(x, hw_shape)
        if intermediates_only:
            return features
        tokens = self._norms(x, stage) if stop else self._norm(x, stage)
        if not self.backbone.cls_tokens[stage]:
            tokens = self._map(tokens, stage, hw_shape, memory_format)
        return tokens, features

    def prune_intermediate_layers(
        self,
        indices: Union[int, List[int]] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> List[int]:
        """Remove the layers after the last of some features, as ``features_only`` does.

        Args:
            indices: Which features, or how many of the last ones. Default: 1.
            prune_norm: Whether to remove the last norm. Default: False.
            prune_head: Whether to remove the classifier. Default: True.

        Returns:
            The features by their numbers from 0.
        """
        wanted, last = feature_take_indices(len(self._taps), indices)
        ends_before = last + 1 < len(self._taps)
        host, (i, j) = self.backbone, self._taps[last]
        if prune_norm or ends_before:
            name = f'norm{len(host.stages) - 1}'
            if hasattr(host, name):
                delattr(host, name)
            host.stages[i].norm = None
        host.stages = host.stages[: i + 1]
        host.stages[i].blocks = host.stages[i].blocks[: j + 1]
        host.out_indices = (i,)
        self._taps, self.feature_info = self._taps[: last + 1], self.feature_info[: last + 1]
        self.num_features = self.head_hidden_size = host.embed_dims[i]
        self.num_prefix_tokens = host.cls_tokens[i]
        if prune_head or ends_before:
            self.neck = None
            self.reset_classifier(0, '')
        return wanted

    def forward_features(self, x: Tensor) -> Tensor:
        """Images ``(B, in_chans, H, W)`` to the last map ``(B, C, H', W')``, after its norm.

        With a class token to the tokens ``(B, 1 + N, C)``, as timm's ViT does.
        """
        features, _ = self.forward_intermediates(x, indices=1)
        return features

    def load_pretrained(self, checkpoint: str) -> None:
        """Load released weights, as timm asks of a model for ``custom_load``.

        Args:
            checkpoint: As in :func:`mmlaplace.engine.load_weights`.

        Raises:
            Exception: As there.
        """
        load_weights(self, checkpoint, adapt_input_conv=True)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool features, and classify them unless ``pre_logits``.

        Without a pool, the class token and the others are classified one by one, as in timm's ViT.

        Raises:
            ValueError: For a map that is to be classified without a pool.
        """
        if self.neck is not None and self.global_pool:
            (x,) = self.neck((x,))
        else:
            x = _pooled(x, self.global_pool, self.num_prefix_tokens, self.num_classes)
        return self.head(x, pre_logits)

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(B, in_chans, H, W)`` to ``(B, num_classes)``."""
        return self.forward_head(self.forward_features(x))


@torch.fx.wrap  # a step of a symbolic trace, which has no shapes
def _pooled(x: Tensor, pool: str, num_prefix_tokens: int, num_classes: int) -> Tensor:
    """A map or tokens after the pool, or as they are without one."""
    if not pool:
        if num_classes and x.dim() == 4:
            raise ValueError(
                "a classifier of maps needs a pool, got global_pool=''; call "
                f"reset_classifier({num_classes}, 'avg')"
            )
        return x
    x = map_to_tokens(x) if x.dim() == 4 else x
    return global_pool_nlc(x, pool, num_prefix_tokens)
