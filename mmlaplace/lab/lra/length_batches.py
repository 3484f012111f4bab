from typing import Any, Dict, Iterator, List

from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import BatchSampler, Sampler


@DATA_SAMPLERS.register_module()
class LengthBatchSampler(BatchSampler):
    """Batches of sequences with about the same length.

    ``SequenceEncoder(padding='cut')`` calls an attention once for each length of a batch. A batch
    of one length costs one call and has no padding. A sample waits until its batch is full. Samples
    of a batch are no longer independent of each other.

    Args:
        sampler: Sampler of a data set that has a method ``length(index)``.
        batch_size: Samples of a batch.
        drop_last: Whether to leave out the last batch if it is incomplete. Default: False. The last
            batches hold the samples that still wait when the sampler ends. Their lengths differ.
            The shortest come first.
        width: How many successive lengths share batches: 1 to ``width``, and so on. Default: 1.

    Raises:
        ValueError: If ``width`` is below 1, or the data set has no such method.

    Examples:
        >>> from mmlaplace.lab.lra import LengthBatchSampler
        >>> class Words(list):
        ...     def length(self, index):
        ...         return len(self[index])
        >>> words = Words(['an', 'old', 'ox', 'eat', 'is'])
        >>> class InOrder(list):
        ...     dataset = words
        >>> list(LengthBatchSampler(InOrder(range(5)), batch_size=2))
        [[0, 2], [1, 3], [4]]
    """

    sampler: Any  # with a ``dataset``

    def __init__(
        self, sampler: Sampler, batch_size: int, drop_last: bool = False, width: int = 1
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        if not hasattr(self.sampler.dataset, 'length'):
            raise ValueError(
                f'the data set of {type(sampler).__name__} must have a method length(index), and '
                f'{type(self.sampler.dataset).__name__} has none'
            )
        if width < 1:
            raise ValueError(f'width must be at least 1, got {width}')
        self.width = width

    def __iter__(self) -> Iterator[List[int]]:
        waiting: Dict[int, List[int]] = {}
        for index in self.sampler:
            group = (self.sampler.dataset.length(index) - 1) // self.width
            batch = waiting.setdefault(group, [])
            batch.append(index)
            if len(batch) == self.batch_size:
                yield waiting.pop(group)
        left = [index for group in sorted(waiting) for index in waiting[group]]
        for start in range(0, len(left), self.batch_size):
            batch = left[start : start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch
