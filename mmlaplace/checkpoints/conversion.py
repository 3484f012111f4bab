"""Convert the authors' checkpoints by a table of names, and report every tensor."""

import re
from typing import Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from .fit import check_stored

# A function of a tensor of the authors, and of the height and width of the training images.
Change = Callable[[Tensor, Tuple[int, int]], Tensor]
# Where tensors go: a name, a name and a change, several of these, or None for an unused tensor.
Target = Union[None, str, Tuple[str, Change], List[Tuple[str, Change]]]
Rows = Mapping[str, Target]
NUMBER = re.compile(r'\{(\w)\}')
# Starts of names outside of a backbone.
OUTSIDE = ('neck.', 'head.', 'decode_head.', 'auxiliary_head.', 'bbox_head.')


class Move(NamedTuple):
    """A released tensor: its old and new name, its row of the table, the change of its values."""

    released: str
    own: str
    row: int
    change: Optional[Change]


class NameTable:
    """A table of the authors' names of parameters.

    Args:
        rows: For the start of a name of the authors, the start of the name here. A start that ends
            without a dot is a whole name. ``{i}`` and ``{j}`` are numbers, and in a name here
            ``{i-1}`` is one less. Of the starts that fit, the one with the most letters holds.
            Names here are those in a backbone, or begin with one of ``OUTSIDE``. Instead of a name,
            there may be a pair of a name and a function that changes the tensor, a list of such
            pairs, or None for a tensor that the models here do not have. Tensors with one new name
            are concatenated in the order of the rows.
        identifying: Names of tensors that every checkpoint with these names has, and no other kind.
            Default: ().
        means: Starts of names here whose tensors are not concatenated, but averaged. Default: ().
        averaged: Whether the authors evaluate the averaged weights of a file that has others too.
            Default: False.
        whole: Whether the names are those of all of a detector or segmentor. Default: False, of a
            classifier or a backbone.

    Examples:
        >>> import torch
        >>> from mmlaplace.checkpoints import NameTable
        >>> names = NameTable({'block{i}.{j}.mlp.fc1.': 'stages.{i-1}.blocks.{j}.ffn.layers.0.'})
        >>> list(names.convert({'block1.0.mlp.fc1.weight': torch.ones(2, 3)}).weights)
        ['backbone.stages.0.blocks.0.ffn.layers.0.weight']
    """

    def __init__(
        self,
        rows: Rows,
        identifying: Tuple[str, ...] = (),
        means: Tuple[str, ...] = (),
        averaged: bool = False,
        whole: bool = False,
    ) -> None:
        self.rows = rows
        self.identifying = identifying
        self.means = means
        self.averaged = averaged
        self.whole = whole
        longest_first = sorted(rows, key=lambda start: -len(NUMBER.sub('', start)))
        order = {start: row for row, start in enumerate(rows)}
        self._rows = [(_pattern(start), order[start], rows[start]) for start in longest_first]

    def of_maps(self, rows: Rows, identifying: Tuple[str, ...] = ()) -> 'NameTable':
        """The names of a detector's or segmentor's backbone, which has further rows.

        Args:
            rows: The further rows.
            identifying: As in a table. Default: as in this table.
        """
        return NameTable({**self.rows, **rows}, identifying or self.identifying)

    def unknown(self, names: Collection[str]) -> List[str]:
        """Those of the authors' names that are in no row."""
        return [name for name in names if self._moves(name) is None]

    def _moves(self, name: str) -> Optional[List[Move]]:
        """Where a tensor goes, or None if it is in no row."""
        for pattern, row, target in self._rows:
            match = pattern.match(name)
            if match is None:
                continue
            if target is None:
                return []
            targets = target if isinstance(target, list) else [target]
            moves = []
            for one in targets:
                start, change = (one, None) if isinstance(one, str) else one
                own = _fill(start, match.groupdict()) + name[match.end() :]
                moves.append(Move(name, own, row, change))
            return moves
        return None

    def _joined(self, name: str, values: List[Tensor]) -> Tensor:
        """One tensor of those with a new name."""
        if len(values) == 1:
            return values[0].clone().contiguous()
        if name.startswith(self.means):
            return torch.stack(values).mean(0)
        return torch.cat(values)

    def convert(
        self,
        released: Mapping[str, Tensor],
        image_size: Tuple[int, int] = (1, 1),
        prefix: str = 'backbone.',
    ) -> 'Converted':
        """Rename and change all tensors of a checkpoint.

        Args:
            released: The authors' tensors, by the authors' names.
            image_size: Height and width of the training images, of which only the ratio counts.
                Default: (1, 1).
            prefix: Prefix of the names in a backbone. Default: 'backbone.', as in a classifier.

        Raises:
            ValueError: If a tensor is in no row, or is larger than its values. The message names
                it.
        """
        unknown = self.unknown(released)
        if unknown:
            raise ValueError(
                f'{len(unknown)} tensors of this checkpoint have no place in our model: {unknown}'
            )
        moves = joined([move for name in released for move in self._moves(name) or ()])
        parts: Dict[str, List[Tensor]] = {}
        report = {name: 'dropped' for name in released}
        for move in sorted(moves, key=lambda move: move.row):  # the sort keeps the order of equals
            outside = move.own.startswith(OUTSIDE)
            own = move.own if outside else prefix + move.own
            value = released[move.released]
            check_stored(move.released, value)
            changed = value if move.change is None else move.change(value, image_size)
            parts.setdefault(own, []).append(changed)
            first = report[move.released]
            report[move.released] = own if first == 'dropped' else f'{first} and {own}'
        weights = {name: self._joined(name, values) for name, values in parts.items()}
        return Converted(weights, [(k, v, tuple(released[k].shape)) for k, v in report.items()])


class Converted(NamedTuple):
    """A converted checkpoint.

    Attributes:
        weights: Tensors by the names in a classifier of mmlaplace.
        report: A row for each tensor of the authors: its name, its new name or that it was
            dropped, and its shape.
    """

    weights: Dict[str, Tensor]
    report: List[Tuple[str, str, tuple]]


def _pattern(start: str) -> 're.Pattern[str]':
    """A regular expression of a start of names, in which ``{i}`` is a number."""
    parts = NUMBER.split(start)
    parts[::2] = [re.escape(part) for part in parts[::2]]
    parts[1::2] = [rf'(?P<{number}>\d+)' for number in parts[1::2]]
    return re.compile(''.join(parts) + ('' if start.endswith('.') else '$'))


def _fill(name: str, numbers: Mapping[str, str]) -> str:
    """A name with numbers for ``{i}``, ``{i-1}`` and ``{i+1}``."""

    def number(match: 're.Match[str]') -> str:
        return str(int(numbers[match[1]]) + int(match[2] or 0))

    return re.sub(r'\{(\w)([+-]\d)?\}', number, name)


def joined(moves: List[Move]) -> List[Move]:
    """The moves, with keys and values where softmax on one map has one linear for all three.

    Such an attention has no tensor but those of its linears.
    """
    insides: Dict[str, set] = {}
    for move in moves:
        attention, dot, rest = move.own.rpartition('attn.')
        insides.setdefault(attention + dot, set()).add(rest.split('.')[0])
    plain = {start for start, names in insides.items() if names <= {'qkv', 'kv', 'proj'}}
    changed = []
    for move in moves:
        start, kv, kind = move.own.rpartition('kv.')
        if kv and start in plain and start.endswith('attn.'):
            move = move._replace(own=f'{start}qkv.{kind}')
        changed.append(move)
    return changed


def within(own: str, released: str, rows: Rows) -> Dict[str, Target]:
    """The rows with a start before the names here, and another before the authors'."""

    def longer(target: Target) -> Target:
        if target is None:
            return None
        if isinstance(target, str):
            return own + target
        if isinstance(target, list):
            return [(own + name, change) for name, change in target]
        return own + target[0], target[1]

    return {released + name: longer(target) for name, target in rows.items()}


def map_sides(count: int, image_size: Tuple[int, int]) -> Optional[Tuple[int, int]]:
    """Height and width of the map of an image of these sides that has so many tokens, if any."""
    height = round((count * image_size[0] / image_size[1]) ** 0.5)
    if height == 0 or count % height or height * image_size[1] != count // height * image_size[0]:
        return None
    return height, count // height


def position_map(tokens: Tensor, image_size: Tuple[int, int] = (1, 1)) -> Tensor:
    """The position embeddings ``(1, N, C)`` of an image's tokens as a map ``(1, C, H, W)``."""
    count = tokens.shape[1]
    sides = map_sides(count, image_size)
    if sides is None:
        raise ValueError(
            f'{count} positions are no map of an image of the sides {tuple(image_size)}; give the '
            'size it was trained at, in pixels, to tools/model_converters/convert.py by '
            '--image-size'
        )
    return tokens.transpose(1, 2).unflatten(2, sides)
