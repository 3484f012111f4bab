from typing import Optional

import torch
import torch.nn.functional as F
from mmengine.model import BaseDataPreprocessor
from mmengine.registry import MODELS


@MODELS.register_module()
class TokenPreprocessor(BaseDataPreprocessor):
    """Pad sequences of ids with zeros, and stack them. They stay integers.

    mmpretrain's own preprocessor converts them to floats.

    Args:
        pad_to: Length of the padded sequences. Default: that of the longest in the batch.
        batch_augments: mmpretrain's classifiers pass it. Ids have no augmentations, so it is None.
        non_blocking: As in mmengine. Default: False.

    Raises:
        ValueError: For ``batch_augments``. In the forward, for a sequence longer than ``pad_to``.

    Examples:
        >>> import torch
        >>> from mmlaplace.lab.lra import TokenPreprocessor
        >>> batch = dict(inputs=[torch.ones(1, 1, 5), torch.ones(1, 1, 3)])  # (1, rows, L)
        >>> TokenPreprocessor()(batch)['inputs'].tolist()  # (B, rows, L)
        [[[1, 1, 1, 1, 1]], [[1, 1, 1, 0, 0]]]
    """

    def __init__(
        self,
        pad_to: Optional[int] = None,
        batch_augments: Optional[dict] = None,
        non_blocking: bool = False,
    ) -> None:
        super().__init__(non_blocking)
        if batch_augments is not None:
            raise ValueError(
                'batch_augments cannot be used with sequences of ids, got '
                f"{batch_augments!r}; set the model's train_cfg to None"
            )
        self.pad_to = pad_to

    def forward(self, data: dict, training: bool = False) -> dict:
        """Inputs ``(rows, L)`` or ``(1, rows, L)`` of different L to one ``(B, rows, L)``."""
        data = self.cast_data(data)
        sequences = [ids.flatten(0, -2) for ids in data['inputs']]
        longest = max(ids.shape[-1] for ids in sequences)
        length = longest if self.pad_to is None else self.pad_to
        if longest > length:
            raise ValueError(
                f'a sequence has {longest} tokens, more than pad_to={length}; raise pad_to, or '
                'lower max_length of the dataset'
            )
        padded = [F.pad(ids, (0, length - ids.shape[-1])) for ids in sequences]
        return dict(data, inputs=torch.stack(padded).long())
