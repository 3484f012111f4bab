"""The five tasks, as mmengine datasets of ids."""

from pathlib import Path
from typing import Any, List, Optional

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from ...commands.data_folders import maker_of_lra
from .listops import END
from .storage import read_split

SPLITS = ('train', 'val', 'test')


class SequenceDataset(BaseDataset):
    """Samples of one sequence, or of two, of ids from 1 on. 0 is for padding.

    A sample is ``dict(img=ids, gt_label=class)`` for the pipeline, with ids ``(rows, L)`` in int64.
    The shorter of two sequences is padded.

    Args:
        data_root: Folder that tools/dataset_converters wrote, with a folder for each split.
        split: ``'train'``, ``'val'`` or ``'test'``.
        max_length: Number of tokens to which a sequence is cut. Default: it is not cut.
        **kwargs: As of mmengine's BaseDataset, such as ``pipeline``. ``indices=100`` takes the
            first 100 samples, ``indices=-100`` the last.

    Raises:
        FileNotFoundError: If the split is not there. The message names the tool that makes it.
        ValueError: For an unknown split, or one that the task does not have.
    """

    def __init__(
        self, data_root: str, split: str, max_length: Optional[int] = None, **kwargs: Any
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f'split must be one of {SPLITS}, got {split!r}')
        if max_length is not None and max_length < 1:
            raise ValueError(f'max_length must be at least 1, got {max_length}')
        self.split = split
        self.max_length = max_length
        super().__init__(data_root=data_root, **kwargs)

    def load_data_list(self) -> list:
        """The samples' numbers and classes; their ids are read when they are asked for."""
        folder = Path(self.data_root) / self.split
        if not folder.is_dir():
            raise FileNotFoundError(f'{folder} does not exist; {maker_of_lra(folder.parent)}')
        self.data = read_split(folder)
        return [dict(sample=i, gt_label=int(c)) for i, c in enumerate(self.data.labels)]

    def ids(self, values: np.ndarray) -> np.ndarray:
        """Ids from 1 on, of the values of a sequence on disk."""
        return values + 1

    def sequences(self, sample: int) -> List[np.ndarray]:
        """Ids of a sample, a sequence or two."""
        rows = [self.data.sequence(i) for i in self.data.rows[sample]]
        return [self.ids(s.astype(np.int64))[: self.max_length] for s in rows]

    def length(self, idx: int) -> int:
        """Number of tokens of a sample without padding. Of two sequences the longer counts."""
        sample = super().get_data_info(idx)['sample']
        return max(int(np.count_nonzero(ids)) for ids in self.sequences(sample))

    def get_data_info(self, idx: int) -> dict:
        """A sample for the pipeline."""
        info = super().get_data_info(idx)
        rows = self.sequences(info['sample'])
        longest = max(map(len, rows))
        info['img'] = np.stack([np.pad(row, (0, longest - len(row))) for row in rows])
        return info


@DATASETS.register_module()
class LRAListOps(SequenceDataset):
    """ListOps. Ids are 1 to 10 for digits, 11 to 14 for operators, and 15 for ``]``.

    Args:
        data_root, split, max_length: As in :class:`SequenceDataset`.
        brackets: Whether ``]`` is a token. Without it an expression does not say where an operator
            ends, so its value cannot be known. The tables of SOFT++ and PolaFormer come from code
            without. Default: True.
        **kwargs: As in :class:`SequenceDataset`.
    """

    def __init__(self, *args: Any, brackets: bool = True, **kwargs: Any) -> None:
        self.brackets = brackets
        super().__init__(*args, **kwargs)

    def ids(self, values: np.ndarray) -> np.ndarray:
        return values if self.brackets else values[values != END]


@DATASETS.register_module()
class LRAText(SequenceDataset):
    """Text and Retrieval: bytes. Ids are 1 to 256.

    Args:
        data_root, split, max_length: As in :class:`SequenceDataset`.
        **kwargs: As in :class:`SequenceDataset`.
    """


@DATASETS.register_module()
class LRAPixels(SequenceDataset):
    """Image and Pathfinder: grey pixels, row by row. Ids are 1 to 256.

    Args:
        data_root, split, max_length: As in :class:`SequenceDataset`.
        black_is_padding: Whether ids are the pixels' values, 0 to 255, so that black pixels are
            padding, which no token attends to. The tables of SOFT++ and PolaFormer come from code
            with ids of this kind. Default: False.
        **kwargs: As in :class:`SequenceDataset`.
    """

    def __init__(self, *args: Any, black_is_padding: bool = False, **kwargs: Any) -> None:
        self.black_is_padding = black_is_padding
        super().__init__(*args, **kwargs)

    def ids(self, values: np.ndarray) -> np.ndarray:
        return values if self.black_is_padding else values + 1
