"""Pathfinder: are the two discs the ends of one dashed path?"""

import math
from typing import List, NamedTuple, Optional, Tuple

import numpy as np

FINE = 4  # cells of the occupancy grid along a pixel
DRAWN = 8  # pixels that are drawn along a pixel of the picture
TURNS = np.deg2rad(np.arange(-90, 91, 5))


class PathfinderSettings(NamedTuple):
    """The settings of the pictures. Lengths are in pixels. The defaults are Pathfinder-32, hard.

    Attributes:
        side: Side of the picture.
        padding: Border that stays free.
        bars: Bars of each of the two paths.
        length: Length of a bar.
        thickness: Thickness of a bar.
        margin: Half of the gap between successive bars. 0 makes paths solid.
        gap: Free room between bars that do not follow each other.
        radius: Radius of the discs.
        seed_distance: Distance between the starts of the two paths.
        seed_window: Side of the square in the middle in which the first path starts.
        continuity: A turn has a density of cos² of this times its angle.
        distractors: Number of further, shorter paths. Those that find no room are left out.
        distractor_bars: Bars of each distractor.
        contrasts: Brightness of the bars of the two paths, of the distractors and of the discs, the
            largest of which becomes white. The authors' generator has (0.86, 1.15, 1), so that
            brightness tells distractors apart.
    """

    side: int = 32
    padding: int = 1
    bars: int = 14
    length: float = 2.0
    thickness: float = 0.5
    margin: float = 1.0
    gap: float = 2.0
    radius: float = 1.5
    seed_distance: float = 7.0
    seed_window: float = 4.0
    continuity: float = 1.0
    distractors: int = 5
    distractor_bars: int = 4
    contrasts: Tuple[float, float, float] = (1.0, 1.0, 1.0)


LEVELS = {  # by bars of a path, as in the benchmark's 32 x 32 pixels
    'hard': PathfinderSettings(),
    'intermediate': PathfinderSettings(bars=9, distractors=6, distractor_bars=3),
    'easy': PathfinderSettings(bars=6, distractors=10, distractor_bars=2),
}
AUTHORS_CONTRASTS = (0.86, 1.15, 1.0)


class Bar(NamedTuple):
    """A bar. It lies from ``margin`` to ``margin + length`` along its angle from its pivot."""

    pivot: np.ndarray
    angle: float
    cells: np.ndarray  # of the grid that no other bar may enter

    def at(self, distance: float) -> np.ndarray:
        """The point at a distance from the pivot, (row, column)."""
        return self.pivot + distance * direction(self.angle)


class Picture(NamedTuple):
    """A picture and the objects on it.

    Attributes:
        pixels: ``(side, side)``, uint8.
        label: 1 if the discs are the ends of one path.
        paths: The bars of the two paths.
        distractors: The bars of the others.
        discs: Middles of the discs, ``(2, 2)`` of rows and columns.
    """

    pixels: np.ndarray
    label: int
    paths: List[List[Bar]]
    distractors: List[List[Bar]]
    discs: np.ndarray


def direction(angle: float) -> np.ndarray:
    return np.array([math.sin(angle), math.cos(angle)])


class Plane:
    """Where bars may lie: counts of those that forbid each cell of a fine grid."""

    def __init__(self, settings: PathfinderSettings, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        s = settings
        self.cells = FINE * s.side
        self.counts = np.ones((self.cells, self.cells), np.int16)
        edge = FINE * s.padding
        self.counts[edge : self.cells - edge, edge : self.cells - edge] = 0
        # A bar's cells and those nearer to it than the gap are within a square around its middle.
        self.reach = s.gap + s.thickness
        around = np.arange(-(extent := math.ceil(FINE * (self.reach + s.length / 2))), extent + 1)
        self.square = np.stack(np.meshgrid(around, around, indexing='ij'), -1).reshape(-1, 2)
        self.along = np.linspace(s.margin, s.margin + s.length, 2 + int(FINE * s.length))
        self.step = s.length + 2 * s.margin
        # The bars before a new one that are nearer to it than the gap without a turn.
        self.exempt = 1 + int(self.reach // self.step)
        weights = np.cos(np.minimum(s.continuity * np.abs(TURNS), math.pi / 2)) ** 2
        self.turns, self.weights = TURNS[weights > 1e-9], weights[weights > 1e-9]

    def free(self, pivot: np.ndarray, angles: np.ndarray) -> np.ndarray:
        """Whether each bar from a pivot at these angles has room."""
        units = np.stack([np.sin(angles), np.cos(angles)], -1)  # (angles, 2)
        points = pivot + self.along[:, None] * units[:, None]  # (angles, points, 2)
        at = np.minimum(np.maximum(FINE * points, 0), self.cells - 1).astype(int)
        return ~(self.counts[at[..., 0], at[..., 1]] > 0).any(1)

    def put(self, pivot: np.ndarray, angle: float) -> Bar:
        """Add a bar. Its cells are then taken."""
        s, unit = self.settings, direction(angle)
        middle = pivot + (s.margin + s.length / 2) * unit
        at = (FINE * middle).astype(int) + self.square
        away = (at + 0.5) / FINE - middle  # from the middle to each cell
        along, across = away @ unit, away @ (unit[::-1] * (-1, 1))
        beyond = np.maximum(np.abs(along) - s.length / 2, 0)
        near = beyond**2 + across**2 <= self.reach**2
        at = at[near & (at >= 0).all(1) & (at < self.cells).all(1)]
        cells = at[:, 0] * self.cells + at[:, 1]
        self.counts.reshape(-1)[cells] += 1
        return Bar(pivot, angle, cells)

    def take(self, bar: Bar) -> None:
        """Remove the bar."""
        self.counts.reshape(-1)[bar.cells] -= 1

    def start(self, tail: np.ndarray) -> Optional[Bar]:
        """Add a first bar from a point at a random angle, if it has room."""
        angle = self.rng.uniform(0, 2 * math.pi)
        pivot = tail - self.settings.margin * direction(angle)
        return self.put(pivot, angle) if self.free(pivot, np.array([angle]))[0] else None

    def follow(self, path: List[Bar]) -> Optional[Bar]:
        """Add a bar after the last of a path, if one has room."""
        near, last = path[-self.exempt :], path[-1]
        for bar in near:
            self.take(bar)
        pivot, angles = last.at(self.step), last.angle + self.turns
        weights = self.weights * self.free(pivot, angles)
        for bar in near:
            self.counts.reshape(-1)[bar.cells] += 1
        if not weights.any():
            return None
        return self.put(pivot, angles[self.rng.choice(len(angles), p=weights / weights.sum())])

    def grow(self, paths: List[List[Bar]], bars: int) -> bool:
        """Let paths grow in turns to this number of bars each, or remove them all."""
        for _ in range(4 * bars * len(paths)):  # then a new start is faster
            path = min(paths, key=len)
            if len(path) == bars:
                return True
            bar = self.follow(path)
            if bar is not None:
                path.append(bar)
                continue
            for _ in range(min(int(self.rng.integers(1, 9)), len(path) - 1)):  # some steps back
                self.take(path.pop())
        for bar in sum(paths, []):
            self.take(bar)
        return False


def target_paths(plane: Plane) -> List[List[Bar]]:
    """Draw the two paths of every picture."""
    s, rng = plane.settings, plane.rng
    while True:
        tail = s.side / 2 + s.seed_window * rng.uniform(-0.5, 0.5, 2)
        first = plane.start(tail)
        if first is None:
            continue
        other = tail + s.seed_distance * direction(rng.uniform(0, 2 * math.pi))
        second = plane.start(other)
        if second is None:
            plane.take(first)
        else:
            paths = [[first], [second]]
            if plane.grow(paths, s.bars):
                return paths


def distractor_paths(plane: Plane) -> List[List[Bar]]:
    """Draw further paths. Each has five attempts to find room."""
    s, rng = plane.settings, plane.rng
    paths: List[List[Bar]] = []
    for _ in range(s.distractors):
        for _ in range(5):
            places = np.argwhere(plane.counts == 0)
            if len(places) < 0.01 * plane.cells**2:
                return paths
            first = plane.start((places[rng.integers(len(places))] + 0.5) / FINE)
            if first is not None and plane.grow([path := [first]], s.distractor_bars):
                paths.append(path)
                break
    return paths


def draw(
    settings: PathfinderSettings,
    paths: List[List[Bar]],
    distractors: List[List[Bar]],
    discs: np.ndarray,
) -> np.ndarray:
    """Draw the picture, stretched to 0 to 255. Where objects overlap, the brighter one is seen."""
    from PIL import Image, ImageDraw

    s = settings
    image = Image.new('L', (DRAWN * s.side,) * 2)
    canvas = ImageDraw.Draw(image)

    def corner(point: np.ndarray) -> Tuple[float, float]:
        return tuple(DRAWN * point[::-1])

    def bars(group: List[List[Bar]], brightness: int) -> None:
        for bar in sum(group, []):
            ends = corner(bar.at(s.margin)), corner(bar.at(s.margin + s.length))
            canvas.line(ends, fill=brightness, width=round(DRAWN * s.thickness))

    def dots(brightness: int) -> None:
        for p in discs:
            canvas.ellipse((*corner(p - s.radius), *corner(p + s.radius)), fill=brightness)

    values = [round(255 * c / max(s.contrasts)) for c in s.contrasts]
    parts = [
        (values[0], lambda value: bars(paths, value)),
        (values[1], lambda value: bars(distractors, value)),
        (values[2], dots),
    ]
    for value, part in sorted(parts, key=lambda part: part[0]):
        part(value)
    small = image.resize((s.side, s.side), Image.Resampling.LANCZOS)
    pixels = np.asarray(small, np.float64)
    pixels -= pixels.min()
    return np.round(255 * pixels / pixels.max()).astype(np.uint8)


def make_picture(rng: np.random.Generator, settings: PathfinderSettings) -> Picture:
    """Draw one picture.

    Two paths of bars start in the middle and grow in turns. If a bar has no room, the last bars are
    removed; the authors' generator begins the picture again. One disc is on an end of a path, the
    other on the far end of the same path, or of the other.

    Args:
        rng: Source of randomness.
        settings: Settings of the pictures.

    Examples:
        >>> import numpy as np
        >>> from mmlaplace.lab.lra.pathfinder import LEVELS, make_picture
        >>> picture = make_picture(np.random.default_rng(0), LEVELS['easy'])
        >>> picture.pixels.shape, picture.label in (0, 1)
        ((32, 32), True)
    """
    s, plane = settings, Plane(settings, rng)
    paths = target_paths(plane)
    distractors = distractor_paths(plane)
    label, one = int(rng.integers(2)), int(rng.integers(2))
    far = one if label else 1 - one
    tail, tip = paths[one][0].at(s.margin), paths[far][-1].at(s.margin + s.length)
    discs = np.stack([tail, tip])
    return Picture(draw(s, paths, distractors, discs), label, paths, distractors, discs)
