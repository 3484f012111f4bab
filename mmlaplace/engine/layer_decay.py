"""Layer-wise learning rates for every toolbox."""

import logging
from typing import Any, List, Optional, Union

import torch.nn as nn
from mmengine.logging import print_log
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS

from ..checkpoints.names import plain_names
from .no_decay import NoDecayOptimWrapperConstructor


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(NoDecayOptimWrapperConstructor):
    """Smaller learning rates for earlier layers, as fine-tuning wants them.

    The backbone gives the depth i of n of each parameter by ``get_layer_depth(name, prefix) ->
    (i, n)``. The parameter gets ``lr * layer_decay_rate ** (n - 1 - i)``. The backbone is
    ``model.backbone``, or the model itself. Everything else is as in
    :class:`NoDecayOptimWrapperConstructor`. Multipliers of
    mmengine's default constructor apply too. A scheduler with a lower bound needs
    ``eta_min_ratio``, because ``eta_min`` may be above the rates of the first layers. In a
    config::

        optim_wrapper = dict(
            type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
            constructor='LayerDecayOptimWrapperConstructor',
            paramwise_cfg=dict(layer_decay_rate=0.8))

    Args:
        optim_wrapper_cfg: Config of the optimizer wrapper. Its optimizer must give ``lr``.
        paramwise_cfg: ``layer_decay_rate``, in (0, 1], beside mmengine's keys.

    Raises:
        ValueError: For a missing ``lr``, or a ``layer_decay_rate`` missing or out of range.
        TypeError: On the call, if the backbone has no ``get_layer_depth``.
    """

    def _validate_cfg(self) -> None:
        super()._validate_cfg()
        self.rate = self.paramwise_cfg.get('layer_decay_rate')
        if not isinstance(self.rate, (int, float)) or not 0 < self.rate <= 1:
            raise ValueError(
                f'paramwise_cfg must have a layer_decay_rate in (0, 1], got {self.rate!r}; '
                'usual values are 0.65 to 0.9 for fine-tuning, and 1 for no decay'
            )
        if self.base_lr is None:
            raise ValueError(
                'the optimizer needs an lr for layer_decay_rate to scale, got none: '
                f'{self.optimizer_cfg}; set optimizer.lr'
            )

    def add_params(
        self,
        params: List[dict],
        module: nn.Module,
        prefix: str = '',
        is_dcn_module: Optional[Union[int, float]] = None,
    ) -> None:
        """Add the default's groups, one per parameter; the outermost call scales their rates."""
        super().add_params(params, module, prefix=prefix, is_dcn_module=is_dcn_module)
        if prefix:  # a child of the model
            return
        # mmpretrain's classifiers have a get_layer_depth too, with other arguments.
        is_backbone = not hasattr(module, 'backbone')
        backbone: Any = module if is_backbone else module.backbone
        if not hasattr(backbone, 'get_layer_depth'):
            raise TypeError(
                f'{type(backbone).__name__} has no get_layer_depth(name, prefix) -> (depth, count) '
                'for layer decay; add it, or leave out constructor= and layer_decay_rate='
            )
        # Without the names of wrappers, such as torch.compile's, which change no layers.
        plain = plain_names(name for name, _ in module.named_parameters())
        names = {module.get_parameter(raw): name for name, raw in plain.items()}
        scales = {}
        for group in params:
            name = names[group['params'][0]]
            depth, count = backbone.get_layer_depth(name, '' if is_backbone else 'backbone.')
            scales[depth] = self.rate ** (count - 1 - depth)
            # Only lr: schedulers take initial_lr from it, once auto_scale_lr has scaled it.
            group['lr'] = group.get('lr', self.base_lr) * scales[depth]
        shown = ', '.join(f'{depth}: {scales[depth]:.3g}' for depth in sorted(scales))
        print_log(f'factors of the lr by depth: {shown}', logger='current', level=logging.INFO)
