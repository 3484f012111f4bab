from typing import Any, Optional

from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class BetaCycleHook(Hook):
    r"""Let :math:`\beta_1` of AdamW fall while the learning rate rises, and rise while it falls.

    PyTorch's OneCycleLR does this by default, and so does the code of the papers' tables.
    mmengine's schedule of that name leaves :math:`\beta_1` alone.

    Args:
        pct_start: Share of the iterations in which :math:`\beta_1` falls, as of OneCycleLR.
        highest: :math:`\beta_1` at the beginning and at the end. Default: 0.95.
        lowest: :math:`\beta_1` at its lowest. Default: 0.85.

    Source: Super-Convergence (arXiv 1708.07120), as PyTorch has it.

    Examples:
        >>> from mmlaplace.lab.lra import BetaCycleHook
        >>> hook = BetaCycleHook(pct_start=0.3)
        >>> [round(hook.beta(step, 101), 2) for step in (0, 14, 65, 100)]
        [0.95, 0.9, 0.9, 0.95]
    """

    def __init__(self, pct_start: float, highest: float = 0.95, lowest: float = 0.85) -> None:
        if not 0 < pct_start < 1 or not 0 <= lowest <= highest < 1:
            raise ValueError(
                f'pct_start ({pct_start}) must be between 0 and 1, and lowest ({lowest}) must be '
                f'at least 0 and at most highest ({highest}), which must be below 1'
            )
        self.pct_start = pct_start
        self.highest = highest
        self.lowest = lowest

    def beta(self, step: int, steps: int) -> float:
        r"""The value of :math:`\beta_1` in iteration ``step`` of ``steps``, from 0."""
        turn, last = self.pct_start * steps - 1, steps - 1
        share = step / turn if step <= turn and turn > 0 else (last - step) / (last - turn)
        return self.highest + min(max(share, 0.0), 1.0) * (self.lowest - self.highest)

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Optional[dict] = None
    ) -> None:
        r"""Set :math:`\beta_1` in every group of parameters."""
        value = self.beta(runner.iter, runner.max_iters)
        for group in runner.optim_wrapper.param_groups:
            group['betas'] = (value, group['betas'][1])
