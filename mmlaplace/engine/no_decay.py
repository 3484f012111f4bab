"""Weight decay for the parameters that should decay, in every toolbox."""

import inspect
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional, Tuple, Union

import torch.nn as nn
from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIMIZERS
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from ..models.layers.rms_norm import RMSNorm

# The norms of mmengine's rules, which do not know RMSNorm. PyTorch has it from 2.4 on.
NORMS: Tuple[type, ...] = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm, RMSNorm)
if hasattr(nn, 'RMSNorm'):
    NORMS += (nn.RMSNorm,)


def default_decay(optimizer_cfg: dict) -> float:
    """The weight decay of an optimizer whose config gives none."""
    kind = optimizer_cfg.get('type')
    cls = kind if isinstance(kind, type) else OPTIMIZERS.get(str(kind))
    known = inspect.signature(cls).parameters if cls is not None else {}
    default = known['weight_decay'].default if 'weight_decay' in known else 0.0
    return default if isinstance(default, (int, float)) else 0.0


@contextmanager
def thawed(model: nn.Module) -> Iterator[None]:
    """A context in which no floating parameter of a model is frozen."""
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class NoDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """No weight decay for norms, biases and the parameters that the modules themselves name.

    A module may have a method ``no_weight_decay()``, which returns the names of its parameters that
    should not decay. The backbones and attentions of this project have this method, and so have
    timm's models. Decay would pull learned scales, class tokens and bias tables to zero. Parameters
    that decay in the papers' code, such as SOFT's and PVT's positions, are not named.

    The optimizer has frozen parameters too, with the rates and the decay that they would have
    otherwise. It skips them while they have no gradient. So they train from the step on at which
    they are thawed, as with mmengine's default constructor without ``paramwise_cfg``. In a config::

        optim_wrapper = dict(
            type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
            constructor='NoDecayOptimWrapperConstructor')

    Args:
        optim_wrapper_cfg: Config of the optimizer wrapper.
            An optimizer without ``weight_decay`` has the default of its class.
        paramwise_cfg: As in mmengine's default constructor. ``norm_decay_mult`` and
            ``bias_decay_mult`` are 0 unless they are given. They apply to the parameters of
            ``custom_keys`` too, and are multiplied by the key's ``decay_mult``. So a key such as
            ``'backbone': dict(lr_mult=0.1, decay_mult=1.0)``, which Mask2Former's configs have,
            gives no decay to norms and biases. The ``decay_mult`` of a key that names them holds
            alone, such as that of ``'norm'``, ``'backbone.norm'`` or ``'bias'``: the match ends
            in the norm's own name or in the parameter's. The ``decay_mult`` of ``custom_keys`` has
            no effect on parameters that modules name. Default: none.

    Examples:
        >>> import torch
        >>> from mmengine.optim import build_optim_wrapper
        >>> import mmlaplace.engine  # registers
        >>> model = torch.nn.ModuleDict(dict(backbone=torch.nn.Linear(4, 4)))
        >>> wrapper = build_optim_wrapper(model, dict(
        ...     type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
        ...     constructor='NoDecayOptimWrapperConstructor',
        ...     paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=0.1, decay_mult=1.0)))))
        >>> [group['weight_decay'] for group in wrapper.optimizer.param_groups]  # weight and bias
        [0.05, 0.0]
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: Optional[dict] = None) -> None:
        paramwise_cfg = dict(paramwise_cfg or {})
        optimizer = dict(optim_wrapper_cfg.get('optimizer') or {})
        if optimizer.get('weight_decay') is None and (decay := default_decay(optimizer)):
            optimizer['weight_decay'] = decay
            optim_wrapper_cfg = dict(optim_wrapper_cfg, optimizer=optimizer)
        # Without a decay there is nothing to multiply, and mmengine refuses the multipliers.
        if optimizer.get('weight_decay') is not None:
            paramwise_cfg = dict(dict(norm_decay_mult=0.0, bias_decay_mult=0.0), **paramwise_cfg)
        super().__init__(optim_wrapper_cfg, paramwise_cfg)

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """The optimizer wrapper for all parameters of a model."""
        # mmengine leaves frozen parameters out, for good.
        with thawed(model):
            return super().__call__(model)

    def add_params(
        self,
        params: List[dict],
        module: nn.Module,
        prefix: str = '',
        is_dcn_module: Optional[Union[int, float]] = None,
    ) -> None:
        """Add mmengine's groups, one per parameter, of a module and all inside of it."""
        first = len(params)
        super().add_params(params, module, prefix=prefix, is_dcn_module=is_dcn_module)
        groups = params[first:]
        logged = [group.get('weight_decay') for group in groups]
        self._decay_as_others(groups, module, prefix, bool(is_dcn_module))
        names = {id(param): name for name, param in module.named_parameters()}
        no_weight_decay: Any = getattr(module, 'no_weight_decay', set)
        exempt = no_weight_decay()
        for group, before in zip(groups, logged):
            name = names[id(group['params'][0])]
            if name in exempt:
                group['weight_decay'] = 0.0
            if group.get('weight_decay') != before:
                path = f'{prefix}.{name}' if prefix else name
                line = f'paramwise_options -- {path}:weight_decay={group["weight_decay"]}'
                print_log(line, logger='current')

    def _decay_as_others(
        self, groups: List[dict], module: nn.Module, prefix: str, is_dcn_module: bool
    ) -> None:
        """Give the module's own parameters of general custom keys the decay of its kind.

        mmengine leaves all other rules out where a key matches, and keeps the key's options in the
        group.
        """
        if self.base_wd is None:
            return
        own = {id(param): name for name, param in module.named_parameters(recurse=False)}
        for group in groups:
            name = own.get(id(group['params'][0]))
            if name is None:
                continue
            if isinstance(module, NORMS):
                factor = self.paramwise_cfg['norm_decay_mult']
                kind = f'{prefix.rpartition(".")[2]}.{name}'
            elif name == 'bias' and not is_dcn_module:
                factor, kind = self.paramwise_cfg['bias_decay_mult'], name
            else:
                continue
            specific = 'decay_mult' in group and self._names(f'{prefix}.{name}', kind)
            if factor is not None and not specific:
                group['weight_decay'] = self.base_wd * group.get('decay_mult', 1.0) * factor

    def _names(self, path: str, kind: str) -> bool:
        """Whether the custom key of a parameter reaches into the end of its path."""
        matching = [key for key in self.paramwise_cfg.get('custom_keys', {}) if key in path]
        key = min(matching, key=lambda key: (-len(key), key))  # that mmengine takes
        return path.rindex(key) + len(key) > len(path) - len(kind)
