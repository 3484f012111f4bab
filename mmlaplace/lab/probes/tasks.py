"""The tasks. A new one is a class with a method that draws a batch."""

import math
from typing import NamedTuple, Sequence, Tuple

import torch
from mmengine.registry import Registry
from torch import Tensor

from ...models.known_options import did_you_mean

# With its place, or mmengine would look for a toolbox named mmlaplace, and say it is not installed.
PROBES = Registry('probe', locations=['mmlaplace.lab.probes.tasks'])
UNASKED = -100  # the class that cross entropy ignores


class Batch(NamedTuple):
    """B maps of N tokens. A token has a key and a value, of which 0 stands for none.

    Attributes:
        keys: Ids of keys ``(B, N)``.
        values: Ids of values ``(B, N)``.
        lengths: Factors ``(B, N)`` of the embeddings of the keys.
        answers: Classes ``(B, N)``, or ``UNASKED`` where a token need not answer.
        hw_shape: Height and width of the map.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor
    answers: Tensor
    hw_shape: Tuple[int, int]

    def to(self, device: str) -> 'Batch':
        """The batch on a device."""
        return self._replace(
            keys=self.keys.to(device),
            values=self.values.to(device),
            lengths=self.lengths.to(device),
            answers=self.answers.to(device),
        )


class Probe:
    """A task on maps of tokens, drawn from a generator.

    Args:
        hw_shape: Height and width of the map in training. Default: (8, 16).
        values: Number of values, or of classes to choose from. Default: 64.

    Attributes:
        num_keys: Number of keys.
        chance: Accuracy of a model that guesses.
        perfect: Accuracy that a perfect model reaches.
        paper: Paper whose claim the probe tests, and its arXiv number.
        knob: The argument that makes the task harder.
        scales: The test maps have so many times the tokens of training.
        first_norm: Whether a norm precedes the first attention.
        frame: Options of the frame that the probe gives to each attention that has them.

    Raises:
        ValueError: For a map with fewer tokens than the task needs, and numbers below 1.
    """

    perfect = 1.0
    paper = ''
    knob = ''
    scales: Tuple[int, ...] = (1,)
    first_norm = True
    frame: dict = {}
    num_keys = 1

    def __init__(self, hw_shape: Tuple[int, int] = (8, 16), values: int = 64) -> None:
        height, width = hw_shape
        check_positive(values=values)
        self.hw_shape = height, width
        self.values = values
        self.chance = 1 / values

    def needs(self, tokens: int, parts: str) -> None:
        """Raise a ValueError if the map of training has fewer tokens."""
        height, width = self.hw_shape
        if tokens > height * width:
            raise ValueError(
                f'{type(self).__name__} needs {tokens} tokens for {parts}, but a map of {height} x '
                f'{width} has {height * width}; lower {self.knob}, or take a larger map'
            )

    def empty(self, size: int, scale: int = 1) -> Batch:
        """A batch of empty maps with ``scale`` times the tokens, scale being a square or 2."""
        height, width = self.hw_shape
        side = math.isqrt(scale)
        height, width = height * side, width * (scale // side)
        zeros = torch.zeros(size, height * width, dtype=torch.long)
        return Batch(
            zeros, zeros.clone(), torch.ones(zeros.shape), zeros + UNASKED, (height, width)
        )

    def batch(self, size: int, generator: torch.Generator, scale: int = 1) -> Batch:
        """Draw ``size`` maps of ``scale`` times the tokens of training."""
        raise NotImplementedError


def shuffled(size: int, count: int, generator: torch.Generator) -> Tensor:
    """Permutations ``(size, count)`` of the numbers from 0 to ``count - 1``."""
    return torch.rand(size, count, generator=generator).argsort(1)


def check_positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if value <= 0:
            raise ValueError(f'{name} must be positive, got {value}')


@PROBES.register_module(name='recall')
class Recall(Probe):
    """K tokens hold a key and a value, and K others ask for the values of the same keys.
    The other tokens of the map are empty.

    Args:
        pairs: K. Default: 32.
        hw_shape, values: As in :class:`Probe`.
    """

    paper = 'Zoology, 2312.04927'
    knob = 'pairs'
    noise = 0

    def __init__(
        self, pairs: int = 32, hw_shape: Tuple[int, int] = (8, 16), values: int = 64
    ) -> None:
        super().__init__(hw_shape, values)
        check_positive(pairs=pairs)
        self.pairs = pairs
        self.stored = pairs * (1 + self.noise)
        self.num_keys = 2 * self.stored
        self.needs(self.stored + pairs, f'{self.stored} pairs and {pairs} queries')

    def batch(self, size: int, generator: torch.Generator, scale: int = 1) -> Batch:
        batch = self.empty(size, scale)
        keys = shuffled(size, self.num_keys, generator)[:, : self.stored] + 1
        values = torch.randint(1, self.values + 1, keys.shape, generator=generator)
        places = shuffled(size, batch.keys.shape[1], generator)
        stored = places[:, : self.stored]
        asked = places[:, self.stored : self.stored + self.pairs]
        batch.keys.scatter_(1, stored, keys)
        batch.values.scatter_(1, stored, values)
        batch.keys.scatter_(1, asked, keys[:, : self.pairs])
        batch.answers.scatter_(1, asked, values[:, : self.pairs] - 1)
        return batch


@PROBES.register_module(name='noise')
class Noise(Recall):
    """Recall of K pairs among D times as many others. Nothing asks for the others.

    The map must have room for all of them.

    Args:
        noise: D. Default: 3.
        pairs: K, the pairs for which a token asks. Default: 8.
        hw_shape, values: As in :class:`Probe`.
    """

    paper = 'Differential Transformer, 2410.05258'
    knob = 'noise'

    def __init__(
        self,
        noise: int = 3,
        pairs: int = 8,
        hw_shape: Tuple[int, int] = (8, 16),
        values: int = 64,
    ) -> None:
        check_positive(noise=noise)
        self.noise = noise
        super().__init__(pairs, hw_shape, values)


@PROBES.register_module(name='magnitude')
class Magnitude(Probe):
    """Each of K keys is stored twice, as a vector and as its multiple, with two values. A
    query is the vector or the multiple, and asks for the value that is stored with it.

    No norm precedes the first attention, because it would make them equal. A model that sees only
    the direction of the query has an accuracy of a half, which counts as chance.

    Args:
        pairs: K. Default: 8.
        factor: The multiple. The closer to 1, the harder. Default: 2.
        hw_shape, values: As in :class:`Probe`.
    """

    paper = 'InLine, 2412.06590'
    knob = 'factor'
    first_norm = False

    def __init__(
        self,
        pairs: int = 8,
        factor: float = 2.0,
        hw_shape: Tuple[int, int] = (8, 16),
        values: int = 64,
    ) -> None:
        super().__init__(hw_shape, values)
        check_positive(pairs=pairs, factor=factor)
        self.pairs = pairs
        self.factor = factor
        self.num_keys = 2 * pairs
        self.chance = (1 + 1 / values) / 2
        self.needs(4 * pairs, f'{2 * pairs} pairs and {2 * pairs} queries')

    def batch(self, size: int, generator: torch.Generator, scale: int = 1) -> Batch:
        batch = self.empty(size, scale)
        keys = (shuffled(size, self.num_keys, generator)[:, : self.pairs] + 1).repeat(1, 2)
        values = torch.randint(1, self.values + 1, keys.shape, generator=generator)
        lengths = torch.ones(keys.shape)
        lengths[:, self.pairs :] = self.factor
        places = shuffled(size, batch.keys.shape[1], generator)
        stored, asked = places[:, : 4 * self.pairs].chunk(2, 1)
        for tokens in (stored, asked):
            batch.keys.scatter_(1, tokens, keys)
            batch.lengths.scatter_(1, tokens, lengths)
        batch.values.scatter_(1, stored, values)
        batch.answers.scatter_(1, asked, values - 1)
        return batch


@PROBES.register_module(name='one_of_many')
class OneOfMany(Probe):
    """n tokens hold a value and a marker, a vector of the lengths 1/n, 2/n, ..., 1.
    All other tokens answer with the value of the longest marker.

    Args:
        candidates: n. Default: 32.
        hw_shape, values: As in :class:`Probe`. Default of ``values``: 16.
    """

    paper = 'Hedgehog, 2402.04347; PolaFormer, 2501.15061'
    knob = 'candidates'

    def __init__(
        self, candidates: int = 32, hw_shape: Tuple[int, int] = (8, 16), values: int = 16
    ) -> None:
        super().__init__(hw_shape, values)
        check_positive(candidates=candidates)
        self.candidates = candidates
        self.needs(candidates + 1, f'{candidates} candidates and one query')

    def batch(self, size: int, generator: torch.Generator, scale: int = 1) -> Batch:
        batch = self.empty(size, scale)
        places = shuffled(size, batch.keys.shape[1], generator)
        marked, asked = places[:, : self.candidates], places[:, self.candidates :]
        values = torch.randint(1, self.values + 1, marked.shape, generator=generator)
        lengths = torch.arange(1, self.candidates + 1) / self.candidates
        batch.keys.scatter_(1, marked, torch.ones_like(marked))
        batch.lengths.scatter_(1, marked, lengths.expand(marked.shape))
        batch.values.scatter_(1, marked, values)
        batch.answers.scatter_(1, asked, values[:, -1:].expand(asked.shape) - 1)
        return batch


@PROBES.register_module(name='offset')
class Offset(Probe):
    """Every token holds a value. It answers with the value some rows down and some columns right.

    Each attention gets the rotary positions and the 3 x 3 convolution of V of the host
    LaplacianFormer, if it has these options. The test is also on maps of four times the tokens.

    Args:
        down: Rows. Default: 3.
        right: Columns. Default: 4.
        positions: Whether attentions get rotary positions and the convolution. Default: True.
        hw_shape, values: As in :class:`Probe`. Default of ``values``: 16.
    """

    paper = 'RoFormer, 2104.09864; FLatten, 2308.00442'
    knob = 'right'
    scales = (1, 4)

    def __init__(
        self,
        down: int = 3,
        right: int = 4,
        positions: bool = True,
        hw_shape: Tuple[int, int] = (8, 16),
        values: int = 16,
    ) -> None:
        super().__init__(hw_shape, values)
        self.down, self.right = down, right
        self.frame = dict(rope=positions, lepe_kernel=3 if positions else 0)
        height, width = self.hw_shape
        if not (0 <= down < height and 0 <= right < width):
            raise ValueError(
                f'down and right must be from 0 to {height - 1} and {width - 1} on a map of '
                f'{height} x {width}, got {down} and {right}'
            )

    def batch(self, size: int, generator: torch.Generator, scale: int = 1) -> Batch:
        batch = self.empty(size, scale)
        height, width = batch.hw_shape
        values = torch.randint(1, self.values + 1, batch.values.shape, generator=generator)
        batch.values.copy_(values)
        answers = batch.answers.view(size, height, width)
        seen = values.view(size, height, width)[:, self.down :, self.right :]
        answers[:, : height - self.down, : width - self.right] = seen - 1
        return batch


@PROBES.register_module(name='count')
class Count(Probe):
    """Some tokens are marked, and every token answers how large their share is, in n classes.
    The test is also on maps of four times the tokens, with the same shares.

    Args:
        values: n. Default: 16.
        scales: The test maps have so many times the tokens. Default: (1, 4).
        hw_shape: As in :class:`Probe`.
    """

    paper = 'LaplacianFormer, 2604.20368'
    knob = 'values'

    def __init__(
        self,
        values: int = 16,
        scales: Sequence[int] = (1, 4),
        hw_shape: Tuple[int, int] = (8, 16),
    ) -> None:
        super().__init__(hw_shape, values)
        self.scales = tuple(scales)
        if 1 not in self.scales or any(s not in (1, 2, 4, 16, 64) for s in self.scales):
            raise ValueError(f'scales must be 1 and some of 2, 4, 16 and 64, got {scales!r}')
        # Shares lie in the middle half of their class, so that a token more or less is no error.
        self.needs(4 * values, f'{values} shares, which differ by four tokens,')

    def batch(self, size: int, generator: torch.Generator, scale: int = 1) -> Batch:
        batch = self.empty(size, scale)
        tokens = batch.keys.shape[1]
        classes = torch.randint(self.values, (size, 1), generator=generator)
        inside = torch.rand(size, 1, generator=generator) / 2 + 0.25
        count = ((classes + inside) / self.values * tokens).round()
        batch.keys.copy_(shuffled(size, tokens, generator) < count)
        batch.answers.copy_(classes.expand(batch.answers.shape))
        return batch


def build_probe(probe: dict) -> Probe:
    """Build a probe.

    Args:
        probe: ``type``, a name in ``PROBES``, and arguments that differ from the defaults.

    Raises:
        ValueError: For an unknown name, and as the probe does.
        TypeError: For an unknown argument.
    """
    options = dict(probe)
    name = options.pop('type', None)
    if name not in PROBES.module_dict:
        known = list(PROBES.module_dict)
        raise ValueError(
            f'there is no probe {name!r}{did_you_mean(name, known)}; choose from {known}'
        )
    return PROBES.get(name)(**options)
