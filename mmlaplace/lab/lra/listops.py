"""ListOps: nested operators on lists of digits, such as ``[MAX 2 9 [MIN 4 7 ] 0 ]`` = 9."""

from random import Random
from typing import Iterator, List, NamedTuple, Optional, Tuple

# Ids of the tokens. 0 is padding. An operator carries its opening bracket, as in the official
# files, whose round brackets say nothing and are no tokens.
DIGITS = {str(digit): 1 + digit for digit in range(10)}
OPERATORS = {'[MIN': 11, '[MAX': 12, '[MED': 13, '[SM': 14}
END = 15
IDS = {**DIGITS, **OPERATORS, ']': END}
WORDS = {number: word for word, number in IDS.items()}
OPERATOR_SHARE = 0.25


class ListOpsSettings(NamedTuple):
    """The settings of the expressions. The defaults are the benchmark's.

    Attributes:
        max_depth: Levels of a tree, with that of the root. The last level has digits only.
        max_args: Largest number of arguments of an operator. The smallest is 2.
        min_length: An expression has more tokens than this, closing brackets included.
        max_length: An expression has fewer tokens than this.
    """

    max_depth: int = 10
    max_args: int = 10
    min_length: int = 500
    max_length: int = 2000


def apply(operator: int, values: List[int]) -> int:
    """The value of an operator. A median of an even number is the mean of two, rounded down.

    Examples:
        >>> from mmlaplace.lab.lra.listops import IDS, apply
        >>> apply(IDS['[MED'], [1, 8, 2, 5]), apply(IDS['[SM'], [7, 8])
        (3, 5)
    """
    if operator == OPERATORS['[MIN']:
        return min(values)
    if operator == OPERATORS['[MAX']:
        return max(values)
    if operator == OPERATORS['[SM']:
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


def tokenize(source: str) -> List[int]:
    """Ids of the tokens of an expression as the official files write it.

    Raises:
        ValueError: For a word that is no token of ListOps.

    Examples:
        >>> from mmlaplace.lab.lra.listops import tokenize
        >>> tokenize('( ( ( [MAX 2 ) 9 ) ] )')
        [12, 3, 10, 15]
    """
    words = source.replace('(', ' ').replace(')', ' ').split()
    unknown = sorted(set(words) - set(IDS))
    if unknown:
        raise ValueError(f'ListOps has no word {unknown[0]!r}; its words are {list(IDS)}')
    return [IDS[word] for word in words]


def draw(rng: Random, settings: ListOpsSettings) -> Optional[Tuple[bytes, int]]:
    """Draw a tree. Its tokens and value, or None if it is too short or too long."""
    tokens: List[int] = []
    length = 0  # with the brackets that are still open

    def node(depth: int) -> int:
        nonlocal length
        if depth == settings.max_depth or rng.random() >= OPERATOR_SHARE:
            length += 1
            digit = int(10 * rng.random())
            tokens.append(1 + digit)
            return digit
        length += 2
        if length >= settings.max_length:
            return 0  # too long already
        operator = 11 + int(4 * rng.random())
        tokens.append(operator)
        values = []
        for _ in range(2 + int((settings.max_args - 1) * rng.random())):
            values.append(node(depth + 1))
            if length >= settings.max_length:
                return 0
        tokens.append(END)
        return apply(operator, values)

    value = node(1)
    kept = settings.min_length < length < settings.max_length
    return (bytes(tokens), value) if kept else None


def expressions(seed: int, settings: ListOpsSettings) -> Iterator[Tuple[bytes, int]]:
    """Distinct expressions and their values, without end.

    The distribution is that of the benchmark's generator: a node is an operator with probability
    0.25 and a digit else, the number of arguments and the operator are uniform, and trees of
    another length are thrown away.
    """
    rng, seen = Random(seed), set()
    while True:
        drawn = draw(rng, settings)
        if drawn is not None and drawn[0] not in seen:
            seen.add(drawn[0])
            yield drawn
