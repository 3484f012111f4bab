"""ListOps: values by an evaluator of its own, the benchmark's distribution, and the words."""

import itertools
import statistics

import pytest

from mmlaplace.lab.lra.listops import OPERATORS, WORDS, ListOpsSettings, expressions, tokenize

FUNCTIONS = {
    '[MIN': min,
    '[MAX': max,
    '[SM': lambda values: sum(values) % 10,
    '[MED': lambda values: int(statistics.median(values)),
}
MINI = ListOpsSettings(max_depth=3, max_args=4, min_length=4, max_length=32)


def evaluate(tokens: bytes) -> tuple:
    """Value, deepest operator and numbers of arguments, by a stack instead of down the tree."""
    stack, deepest, counts = [[]], 0, set()
    for token in tokens:
        word = WORDS[token]
        if word in FUNCTIONS:
            stack.append([word])
            deepest = max(deepest, len(stack) - 1)
        elif word == ']':
            operator, *values = stack.pop()
            counts.add(len(values))
            stack[-1].append(FUNCTIONS[operator](values))
        else:
            stack[-1].append(int(word))
    ((value,),) = stack
    return value, deepest, counts


def drawn(count: int, settings: ListOpsSettings, seed: int = 0) -> list:
    return list(itertools.islice(expressions(seed, settings), count))


@pytest.mark.parametrize(('settings', 'count'), [(MINI, 2000), (ListOpsSettings(), 40)])
def test_expressions_are_distinct_and_their_values_those_of_another_evaluator(settings, count):
    found, samples = set(), drawn(count, settings)
    assert samples == drawn(count, settings) != drawn(count, settings, seed=1)
    assert len({tokens for tokens, _ in samples}) == count
    for tokens, value in samples:
        result, depth, counts = evaluate(tokens)
        assert result == value
        assert depth < settings.max_depth  # the last level has digits only
        assert settings.min_length < len(tokens) < settings.max_length
        found |= counts
    assert found == set(range(2, settings.max_args + 1))


@pytest.mark.slow
def test_distribution_is_that_of_the_benchmark():
    samples = drawn(3000, ListOpsSettings())
    # Its own generator: a mean of 1061 tokens, over 12,000. The deviation is 400, so four standard
    # errors of ours are 30.
    assert statistics.mean(len(tokens) for tokens, _ in samples) == pytest.approx(1061, abs=30)
    # And 0.553 of the values below MIN are 0, 0.555 of those below MAX are 9. Each operator has
    # some 750 samples, of which four standard errors are 0.073.
    for word, value, share, error in (('MIN', 0, 0.553, 0.073), ('MAX', 9, 0.555, 0.073),
                                      ('SM', 3, 0.10, 0.044)):  # fmt: skip
        values = [v for tokens, v in samples if tokens[0] == OPERATORS[f'[{word}']]
        assert values.count(value) / len(values) == pytest.approx(share, abs=error)


def test_round_brackets_are_no_tokens():
    ids = tokenize('( ( ( ( [MAX 2 ) 9 ) ( ( ( [SM 7 ) 8 ) ] ) ) ] )')
    assert [WORDS[i] for i in ids] == ['[MAX', '2', '9', '[SM', '7', '8', ']', ']']
    assert evaluate(bytes(ids))[0] == 9
    with pytest.raises(ValueError, match=r"no word '\[FIRST'; its words are .*'\[MIN'"):
        tokenize('( ( [FIRST 2 ) ] )')
