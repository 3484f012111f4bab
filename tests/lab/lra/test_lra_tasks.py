"""ListOps: values by an evaluator of its own, the benchmark's distribution, and the words.

Pathfinder: the label is what the picture shows.
"""

import itertools
import statistics

import numpy as np
import pytest
from scipy import ndimage

from mmlaplace.lab.lra.listops import OPERATORS, WORDS, ListOpsSettings, expressions, tokenize
from mmlaplace.lab.lra.pathfinder import LEVELS, PathfinderSettings, make_picture

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
    for word, value, share, error in (
        ('MIN', 0, 0.553, 0.073),
        ('MAX', 9, 0.555, 0.073),
        ('SM', 3, 0.10, 0.044),
    ):
        values = [v for tokens, v in samples if tokens[0] == OPERATORS[f'[{word}']]
        assert values.count(value) / len(values) == pytest.approx(share, abs=error)


def test_round_brackets_are_no_tokens():
    ids = tokenize('( ( ( ( [MAX 2 ) 9 ) ( ( ( [SM 7 ) 8 ) ] ) ) ] )')
    assert [WORDS[i] for i in ids] == ['[MAX', '2', '9', '[SM', '7', '8', ']', ']']
    assert evaluate(bytes(ids))[0] == 9
    with pytest.raises(ValueError, match=r"no word '\[FIRST'; its words are .*'\[MIN'"):
        tokenize('( ( [FIRST 2 ) ] )')


SMALL = PathfinderSettings(
    side=16,
    bars=3,
    length=3.0,
    thickness=1.0,
    margin=0.0,
    gap=2.5,
    seed_distance=6.0,
    distractors=0,
)
# Solid paths so far apart that pixels of two of them never touch.
SOLID = SMALL._replace(side=48, bars=6, length=4.0, gap=6.0, seed_distance=14.0, seed_window=10.0)


def pictures(count: int, settings: PathfinderSettings) -> list:
    rng = np.random.default_rng(0)
    return [make_picture(rng, settings) for _ in range(count)]


def test_the_label_is_whether_the_discs_are_connected():
    for picture in pictures(12, SOLID):
        components, _ = ndimage.label(picture.pixels > 100, structure=np.ones((3, 3)))
        one, other = np.minimum(picture.discs.astype(int), SOLID.side - 1)
        assert components[tuple(one)] and components[tuple(other)]
        assert (components[tuple(one)] == components[tuple(other)]) == bool(picture.label)


def test_paths_end_at_discs_and_have_their_bars_with_gaps_between():
    settings = LEVELS['easy']
    for picture in pictures(2, settings):
        assert [len(path) for path in picture.paths] == [settings.bars] * 2
        assert all(len(path) == settings.distractor_bars for path in picture.distractors)
        assert len(picture.distractors) <= settings.distractors
        last = settings.margin + settings.length
        ends = [
            end
            for path in picture.paths
            for end in (path[0].at(settings.margin), path[-1].at(last))
        ]
        for disc in picture.discs:
            assert np.hypot(*(np.stack(ends) - disc).T).min() < 1e-9
        for path in picture.paths:
            for bar, after in zip(path, path[1:]):
                gap = after.at(settings.margin) - bar.at(last)
                # Straight on it is two margins. A turn brings the bars nearer.
                assert np.hypot(*gap) <= 2 * settings.margin + 1e-9
                assert np.cos(after.angle - bar.angle) > 0


def test_pictures_have_balanced_labels_and_the_whole_range():
    drawn = pictures(60, SMALL)
    pixels = np.stack([picture.pixels for picture in drawn])
    # Four standard errors of a fair coin thrown 60 times.
    assert abs(np.mean([picture.label for picture in drawn]) - 0.5) < 0.26
    assert pixels.shape == (60, 16, 16) and pixels.dtype == np.uint8
    assert all(p.min() == 0 and p.max() == 255 for p in pixels)
