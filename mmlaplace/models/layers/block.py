"""Stages and blocks of tokens, and their parts: FFN, stochastic depth, layer scale."""

from contextlib import nullcontext
from typing import Any, Callable, Collection, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.checkpoint as checkpoint
from mmengine.model import BaseModule, ModuleList, Sequential
from mmengine.registry import MODELS
from torch import Tensor
from torch.nn.modules import module as every_module

from mmlaplace.ops._checks import is_compiling
from mmlaplace.ops.backend import in_cpu_graph, with_current_backend
from mmlaplace.ops.gelu_ffn import PLAIN, gelu_ffn
from mmlaplace.ops.precision import autocasting

from .build import build_activation, build_token_norm
from .feature_map import DepthwiseConv
from .recomputing import is_recomputing, statistics_kept

DROP_PATH_PER = ('sample', 'element')
FFN_LAYERS: Tuple[Any, ...] = (nn.Linear, nn.GELU, nn.Dropout, nn.Linear, nn.Dropout)
# A user may set another forward for a whole class.
TORCHS_FORWARDS = (nn.Linear.forward, nn.GELU.forward, nn.Dropout.forward)


class DropPath(nn.Module):
    """Drop the residual branch of whole samples while training, scaling up what stays.

    It is written here so that mmlaplace does not need mmcv, torchvision or timm.

    Args:
        drop_prob: Probability of dropping a sample's branch. Default: 0.
        per: The unit that is dropped. ``'sample'`` (default): the whole branch of a sample.
            ``'element'``: each element by itself, as in plain dropout.

    Raises:
        ValueError: For an unknown ``per``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import DropPath
        >>> dropped = DropPath(0.5)(torch.ones(100, 4, 8))  # (B, N, C)
        >>> dropped.unique().tolist()
        [0.0, 2.0]
    """

    def __init__(self, drop_prob: float = 0.0, per: str = 'sample') -> None:
        super().__init__()
        if per not in DROP_PATH_PER:
            raise ValueError(f'drop_path_per must be one of {DROP_PATH_PER}, got {per!r}')
        self.drop_prob = drop_prob
        self.per = per

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.drop_prob == 0:
            return x
        if self.per == 'element':
            return F.dropout(x, self.drop_prob)
        keep = 1 - self.drop_prob
        return x * x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        return f'drop_prob={self.drop_prob}, per={self.per!r}'


class LayerScale(nn.Module):
    """Multiply each channel by a learned number, as CaiT does with residual branches.

    Args:
        embed_dims: Channels C.
        init_value: Value of all numbers at the start. Default: 1e-5.

    Source: CaiT (arXiv 2103.17239).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import LayerScale
        >>> LayerScale(3, init_value=0.5)(torch.ones(1, 2, 3))  # (B, N, C)
        tensor([[[0.5000, 0.5000, 0.5000],
                 [0.5000, 0.5000, 0.5000]]], grad_fn=<MulBackward0>)
    """

    def __init__(self, embed_dims: int, init_value: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((embed_dims,), float(init_value)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def are_untouched(layers: Iterable[nn.Module]) -> bool:
    """Whether no layer has a hook, or another forward than its class."""
    if every_module._has_any_global_hook():
        return False
    for layer in layers:
        hooked = layer._forward_hooks or layer._forward_pre_hooks
        if hooked or layer._backward_hooks or layer._backward_pre_hooks:
            return False
        if 'forward' in layer.__dict__:
            return False
    return True


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has a hook of any kind, of which torch has a dict each."""
    return any(value for name, value in module.__dict__.items() if name.endswith('_hooks'))


def own_bias(linear: nn.Module) -> Optional[Tensor]:
    """The bias that a linear layer adds, or None where only a call of the layer can tell.

    Tools that prune, quantise, shard or wrap a layer change what its call computes, and often its
    attribute ``bias`` too.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.block import own_bias
        >>> linear = torch.nn.Linear(4, 4)
        >>> own_bias(linear) is linear.bias
        True
        >>> hook = linear.register_forward_hook(lambda module, inputs, out: 2 * out)
        >>> own_bias(linear) is None
        True
    """
    bias = linear._parameters.get('bias', linear.__dict__.get('bias'))
    return bias if isinstance(bias, Tensor) and are_untouched([linear]) else None


class FFN(BaseModule):
    """Linear, an optional depthwise convolution, an activation, linear.

    Args:
        embed_dims: Channels C.
        ffn_ratio: Hidden channels in units of C.
        drop_rate: Dropout rate after the activation and after the last linear. Default: 0.
        dwconv_kernel: Odd kernel size of a depthwise convolution after the first linear, as in
            PVTv2. 0 leaves it out. Default: 0.
        act_cfg: Config of the activation. ``dict(type='GELU', approximate='tanh')`` is the
            approximation of the default. Default: ``dict(type='GELU')``.
        dwconv_act_cfg: Config of an activation before the convolution, such as
            ``dict(type='ReLU')`` in the PVTv2 of linear time. Default: none.
        dwconv_residual: Whether the convolution comes after the activation and its dropout instead,
            and its output is added to its input, as in RAVLT. Default: False.
        act_twice: Whether the activation comes once more after this sum, as in H-ViT³. Default:
            False.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import FFN
        >>> FFN(64, ffn_ratio=4, dwconv_kernel=3)(torch.randn(1, 5 * 9, 64), (5, 9)).shape
        torch.Size([1, 45, 64])
    """

    def __init__(
        self,
        embed_dims: int,
        ffn_ratio: float,
        drop_rate: float = 0.0,
        dwconv_kernel: int = 0,
        act_cfg: Optional[dict] = None,
        dwconv_act_cfg: Optional[dict] = None,
        dwconv_residual: bool = False,
        act_twice: bool = False,
    ) -> None:
        super().__init__()
        if act_twice and not (dwconv_kernel and dwconv_residual):
            raise ValueError(
                'act_twice=True repeats the activation after a convolution that is added; set '
                f'dwconv_residual=True (got {dwconv_residual}) and dwconv_kernel ({dwconv_kernel})'
            )
        hidden = int(embed_dims * ffn_ratio)
        self.layers = Sequential(
            nn.Linear(embed_dims, hidden),
            build_activation(act_cfg or dict(type='GELU')),
            nn.Dropout(drop_rate),
            nn.Linear(hidden, embed_dims),
            nn.Dropout(drop_rate),
        )
        self.dwconv = DepthwiseConv(hidden, dwconv_kernel) if dwconv_kernel else None
        self.dwconv_act = build_activation(dwconv_act_cfg) if dwconv_act_cfg else None
        self.dwconv_residual = dwconv_residual
        self.act_twice = act_twice

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``."""
        layers = self.layers
        if self.dwconv is None:
            if not self.is_one_op(x):
                return layers(x)
            first, act, _, second, _ = layers
            return gelu_ffn(
                x, first.weight, first.bias, second.weight, second.bias, act.approximate
            )
        first, act, dropout, second, last = layers
        x = first(x)  # (B, N, C * ffn_ratio)
        if not self.dwconv_residual:
            x = self.dwconv(x if self.dwconv_act is None else self.dwconv_act(x), hw_shape)
        x = dropout(act(x))
        if self.dwconv_residual:
            x = x + self.dwconv(x, hw_shape)
            x = act(x) if self.act_twice else x
        return last(second(x))

    def is_one_op(self, x: Tensor, in_eval: bool = False) -> bool:
        """Whether the layers compute nothing else than the op does, or would do so in eval mode.

        A user may have replaced, parametrised or hooked them. Other classes of tensors, such as
        those of quantised and of sharded weights, know few functions. Exported graphs have torch's
        own layers, as other runtimes read them. So do those under autocast, and what counts the
        operations of layers.
        """
        if is_compiling():
            if not in_cpu_graph(x) or autocasting(x.device):
                return False
        elif torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0:
            return False
        layers: Any = tuple(self.layers._modules.values())
        if tuple(map(type, layers)) != FFN_LAYERS:
            return False
        if not are_untouched((self.layers, *layers)):
            return False
        if (nn.Linear.forward, nn.GELU.forward, nn.Dropout.forward) != TORCHS_FORWARDS:
            return False
        first, _, dropout, second, last = layers
        if type(first.weight) not in PLAIN or type(second.weight) not in PLAIN:
            return False
        drops = (dropout.training and dropout.p > 0) or (last.training and last.p > 0)
        if drops and not in_eval:
            return False
        return type(x) in PLAIN and x.is_cpu and x.layout == torch.strided and not x.is_nested


class Block(BaseModule):
    """A block of tokens that can compute its activations again in the backward pass.

    A subclass has ``_forward(x, hw_shape)``, and ``attn`` (None if it has no attention).

    Args:
        drop_path_rate, with_cp, drop_path_per: As in :class:`TransformerBlock`.
    """

    def __init__(
        self, drop_path_rate: float = 0.0, with_cp: bool = False, drop_path_per: str = 'sample'
    ) -> None:
        super().__init__()
        self.drop_path = DropPath(drop_path_rate, drop_path_per)
        self.with_cp = with_cp

    def _forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``."""
        if self.with_cp and torch.is_grad_enabled():
            compiling = is_compiling()
            forward = self._forward if compiling else with_current_backend(self._counted_once)
            return checkpoint.checkpoint(forward, x, hw_shape, use_reentrant=False)
        if self.training:
            return self._counted_once(x, hw_shape)
        return self._forward(x, hw_shape)

    def _counted_once(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """The forward, which leaves the statistics of BatchNorms if a checkpoint repeats it."""
        if not is_recomputing():
            return self._forward(x, hw_shape)
        with statistics_kept(self):
            return self._forward(x, hw_shape)


class TransformerBlock(Block):
    """``x + attention(norm(x))``, then ``x + ffn(norm(x))``.

    Args:
        embed_dims: Channels C.
        attn_cfg: Complete config of a registered attention.
        ffn_ratio: Hidden channels of the FFN in units of C. Default: 4.
        drop_rate: Dropout rate in the FFN. Default: 0.
        drop_path_rate: Stochastic depth rate of both branches. Default: 0.
        with_cp: Whether to recompute activations in the backward pass to save memory. Default:
            False.
        norm_first: Whether the block is pre-norm. Post-norm is ``norm(x + attention(x))``, then
            ``norm(x + ffn(x))``. Default: True.
        norm_cfg: Config of the norms. Default: ``dict(type='LN', eps=1e-6)``.
        ffn_cfg: Further arguments of :class:`FFN`. With another ``type``, such as :class:`SwiGLU`,
            arguments of that, and the ``norm_cfg`` of the block. Default: none.
        drop_path_per: Unit that stochastic depth drops, see :class:`DropPath`. Default: 'sample'.
        layer_scale: Value at the start of a :class:`LayerScale` of both branches. Default: None,
            no scale.
        cpe_kernels: Odd kernel sizes of two depthwise convolutions, before the attention and before
            the FFN. Their output is added to the tokens: conditional positions, as in CPVT
            (arXiv 2102.10882). They take no class token. Default: (0, 0), none.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import TransformerBlock
        >>> attn_cfg = dict(
        ...     type='PolaAttention', embed_dims=64, num_heads=2, input_resolution=(14, 14))
        >>> TransformerBlock(64, attn_cfg)(torch.randn(1, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([1, 45, 64])
    """

    gives_residual = False  # whether an attention with filters_from='residual' gets x too

    def __init__(
        self,
        embed_dims: int,
        attn_cfg: dict,
        ffn_ratio: float = 4.0,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        norm_first: bool = True,
        norm_cfg: Optional[dict] = None,
        ffn_cfg: Optional[dict] = None,
        drop_path_per: str = 'sample',
        layer_scale: Optional[float] = None,
        cpe_kernels: Tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(drop_path_rate, with_cp, drop_path_per)
        norm_cfg = norm_cfg or dict(type='LN', eps=1e-6)
        self.norm1 = build_token_norm(norm_cfg, embed_dims)
        self.attn = MODELS.build(attn_cfg)
        self.norm2 = build_token_norm(norm_cfg, embed_dims)
        ffn = dict(ffn_cfg or {})
        make: Any = ffn.pop('type', FFN)
        if make is not FFN:
            ffn.setdefault('norm_cfg', norm_cfg)
        self.ffn = make(embed_dims, ffn_ratio, drop_rate, **ffn)
        self.scale1 = None
        self.scale2 = None
        if layer_scale is not None:
            self.scale1 = LayerScale(embed_dims, layer_scale)
            self.scale2 = LayerScale(embed_dims, layer_scale)
        first_kernel, second_kernel = cpe_kernels
        self.cpe1 = DepthwiseConv(embed_dims, first_kernel) if first_kernel else None
        self.cpe2 = DepthwiseConv(embed_dims, second_kernel) if second_kernel else None
        self.norm_first = norm_first

    def branches(self) -> List[Tuple[Any, nn.Module, Callable, Any]]:
        """The residual branches in their order: convolution or None, norm, branch, scale or None.

        A block with further branches, or with layers around the attention, overrides it.
        """
        return [
            (self.cpe1, self.norm1, self.attn, self.scale1),
            (self.cpe2, self.norm2, self.ffn, self.scale2),
        ]

    def _forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        for cpe, norm, branch, scale in self.branches():  # x: (B, N, C)
            if cpe is not None:
                x = x + cpe(x, hw_shape)
            normed = norm(x) if self.norm_first else x
            if self.gives_residual and getattr(branch, 'filters_from', None) == 'residual':
                out = branch(normed, hw_shape, residual=x)
            else:
                out = branch(normed, hw_shape)
            x = x + self.drop_path(out if scale is None else scale(out))
            if not self.norm_first:
                x = norm(x)
        return x


class StageLayers(BaseModule):
    """The layers of one stage, from its map to its tokens.

    Backbones call their stages, so ``backbone.stages[i]`` can have hooks, and activation
    checkpointing or sharding can wrap it. ``stage['blocks']`` is ``stage.blocks``. A stage that has
    no such layer does not contain its name: ``'position' in stage``.

    Args:
        patch_embed: Makes the tokens of a map.
        position: Adds positions and a class token, or None.
        blocks: Mix the tokens.
        norm: What the tokens pass behind the blocks, or None.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LaplacianFormer
        >>> stage = LaplacianFormer('micro').stages[0]
        >>> tokens, hw_shape = stage(torch.randn(1, 3, 64, 96))
        >>> tokens.shape, hw_shape, len(stage['blocks'])
        (torch.Size([1, 384, 32]), (16, 24), 1)
    """

    # A subclass of ModuleDict would be a container without a forward for torch's fully_shard.
    def __init__(
        self,
        patch_embed: nn.Module,
        position: Optional[nn.Module],
        blocks: Sequence[nn.Module],
        norm: Optional[nn.Module],
    ) -> None:
        super().__init__()
        self.patch_embed = patch_embed
        self.position = position
        self.blocks = ModuleList(blocks)
        self.norm = norm

    def __getitem__(self, name: str) -> nn.Module:
        return self._modules[name]

    def __contains__(self, name: str) -> bool:
        return self._modules.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.named_children())

    def forward(
        self, x: Tensor, after: Collection[int] = (), stop: bool = False
    ) -> Tuple[Any, ...]:
        """A map to the tokens of the stage.

        Args:
            x: ``(B, C_in, H', W')``.
            after: Numbers of the blocks after which the tokens are returned too. Default: none.
            stop: Whether to end after the last of these blocks. Default: False.

        Returns:
            Tokens ``(B, N, C)``, with class tokens ``(B, 1 + N, C)``; the sides ``(H, W)`` of their
            map; and the tokens after each of the blocks in ``after``.
        """
        repeated = self.training and is_recomputing()
        kept: List[Tensor] = []
        with statistics_kept(self) if repeated else nullcontext():
            x, hw_shape = self.patch_embed(x)  # (B, N, C), (H, W)
            if self.position is not None:
                x = self.position(x, hw_shape)  # (B, N, C), or (B, 1 + N, C)
            for i, block in enumerate(self.blocks):
                x = block(x, hw_shape)
                if i in after:
                    kept.append(x)
                if stop and len(kept) == len(after):
                    return (x, hw_shape, *kept)
            if self.norm is not None:
                x = self.norm(x)
        return (x, hw_shape, *kept)
