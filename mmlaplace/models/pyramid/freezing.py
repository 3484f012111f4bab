"""Stages and BatchNorms that do not train."""

from typing import Any

import torch.nn as nn
from torch.nn.modules.batchnorm import _BatchNorm


class Freezing(nn.Module):
    """The options ``frozen_stages`` and ``norm_eval`` of a pyramid."""

    frozen_stages: int
    norm_eval: bool
    stages: Any  # a ModuleList of ModuleDicts

    def _freeze_stages(self) -> None:
        frozen = []
        if self.frozen_stages >= 0:
            stem = self.stages[0]
            frozen += [stem[name] for name in ('patch_embed', 'position') if name in stem]
        for i, stage in enumerate(self.stages[: max(self.frozen_stages, 0)]):
            frozen.append(stage)
            if hasattr(self, f'norm{i}'):
                frozen.append(getattr(self, f'norm{i}'))
        for module in frozen:
            module.eval()
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> 'Freezing':
        """Set the mode, but keep frozen stages, and BatchNorms under ``norm_eval``, in eval."""
        super().train(mode)
        self._freeze_stages()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self
