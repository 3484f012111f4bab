"""Pathfinder: the label is what the picture shows."""

import numpy as np
from scipy import ndimage

from mmlaplace.lab.lra.pathfinder import LEVELS, PathfinderSettings, make_picture

MINI = PathfinderSettings(
    side=16, bars=3, length=3.0, thickness=1.0, margin=0.0, gap=2.5, seed_distance=6.0,
    distractors=0,
)  # fmt: skip
# Solid paths so far apart that pixels of two of them never touch.
SOLID = MINI._replace(side=48, bars=6, length=4.0, gap=6.0, seed_distance=14.0, seed_window=10.0)


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
        ends = [end for path in picture.paths
                for end in (path[0].at(settings.margin), path[-1].at(last))]  # fmt: skip
        for disc in picture.discs:
            assert np.hypot(*(np.stack(ends) - disc).T).min() < 1e-9
        for path in picture.paths:
            for bar, after in zip(path, path[1:]):
                gap = after.at(settings.margin) - bar.at(last)
                # Straight on it is two margins. A turn brings the bars nearer.
                assert np.hypot(*gap) <= 2 * settings.margin + 1e-9
                assert np.cos(after.angle - bar.angle) > 0


def test_pictures_have_balanced_labels_and_the_whole_range():
    drawn = pictures(60, MINI)
    pixels = np.stack([picture.pixels for picture in drawn])
    # Four standard errors of a fair coin thrown 60 times.
    assert abs(np.mean([picture.label for picture in drawn]) - 0.5) < 0.26
    assert pixels.shape == (60, 16, 16) and pixels.dtype == np.uint8
    assert all(p.min() == 0 and p.max() == 255 for p in pixels)
