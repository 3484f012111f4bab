"""Make the data of ListOps and Pathfinder, two tasks of Long Range Arena, by their rules.

The official files of both were drawn without a seed, so only their distribution can be reproduced.

  full  96,000 / 2,000 / 2,000 expressions of 500 to 2,000 tokens (a minute or two), and 160,000 /
        20,000 / 20,000 pictures of 32 x 32 pixels with paths of 14 bars (some 24 a second)
  mini  30,000 / 1,000 / 1,000 expressions of 5 to 31 tokens, and 20,000 / 1,000 / 1,000 pictures of
        16 x 16 pixels with solid paths of 3 bars and no distractors, to train on a CPU

The folders are OUT/{listops,pathfinder}{,_mini}. An interrupted run can be continued: its finished
parts are kept in a folder *.partial.

Examples:
  python tools/dataset_converters/make_lra_datasets.py --size mini
  python tools/dataset_converters/make_lra_datasets.py --tasks pathfinder --workers 16
"""

import itertools
import shutil
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Dict, List

import numpy as np
from rich.progress import track

from mmlaplace.commands.command_line import ToolParser, at_least, positive
from mmlaplace.lab.lra.listops import ListOpsSettings, expressions
from mmlaplace.lab.lra.pathfinder import AUTHORS_CONTRASTS, LEVELS, PathfinderSettings, make_picture
from mmlaplace.lab.lra.storage import make_folder, write_split
from mmlaplace.writing import whole_file

VERSION = 1  # raise it when other samples come out
PART = 500  # pictures that are drawn from one seed, and kept when a run is cut short
MINI_PATHFINDER = PathfinderSettings(
    side=16,
    bars=3,
    length=3.0,
    thickness=1.0,
    margin=0.0,
    gap=2.5,
    seed_distance=6.0,
    distractors=0,
)
SETTINGS = {
    ('listops', 'full'): ListOpsSettings(),
    ('listops', 'mini'): ListOpsSettings(max_depth=3, max_args=4, min_length=4, max_length=32),
    ('pathfinder', 'full'): LEVELS['hard'],
    ('pathfinder', 'mini'): MINI_PATHFINDER,
}
COUNTS = {
    ('listops', 'full'): dict(train=96_000, val=2_000, test=2_000),
    ('listops', 'mini'): dict(train=30_000, val=1_000, test=1_000),
    ('pathfinder', 'full'): dict(train=160_000, val=20_000, test=20_000),
    ('pathfinder', 'mini'): dict(train=20_000, val=1_000, test=1_000),
}


def make_listops(
    folder: Path, seed: int, settings: ListOpsSettings, counts: Dict[str, int], workers: int
) -> None:
    """Distinct expressions, of which no two splits share one."""
    drawn = expressions(seed, settings)
    for split, count in counts.items():
        samples = list(track(itertools.islice(drawn, count), f'listops {split}', total=count))
        sequences, values = zip(*samples)
        write_split(folder / split, [np.frombuffer(s, np.uint8) for s in sequences], values)


def make_part(folder: Path, seed: List[int], settings: PathfinderSettings, number: int) -> None:
    """One part of a split, unless it is there."""
    path = folder / f'{number:05d}.npz'
    if path.exists():
        return
    rng = np.random.default_rng([*seed, number])
    pictures = [make_picture(rng, settings) for _ in range(PART)]
    pixels = np.stack([picture.pixels for picture in pictures])
    labels = np.array([picture.label for picture in pictures])
    with whole_file(path) as temporary:
        np.savez_compressed(temporary, pixels=pixels, labels=labels)


def make_pathfinder(
    folder: Path, seed: int, settings: PathfinderSettings, counts: Dict[str, int], workers: int
) -> None:
    """Pictures in parts. What comes out does not depend on the number of workers."""
    for index, (split, count) in enumerate(counts.items()):
        parts = folder / f'{split}.parts'
        parts.mkdir(parents=True, exist_ok=True)
        numbers = range(-(-count // PART))
        make = partial(make_part, parts, [seed, index], settings)
        with get_context('fork').Pool(workers) as pool:
            done = pool.imap_unordered(make, numbers)
            for _ in track(done, f'pathfinder {split}', total=len(numbers)):
                pass
        loaded = [np.load(parts / f'{number:05d}.npz') for number in numbers]
        pixels = np.concatenate([part['pixels'] for part in loaded])[:count]
        labels = np.concatenate([part['labels'] for part in loaded])[:count]
        write_split(folder / split, pixels.reshape(count, -1), labels)
    for split in counts:
        shutil.rmtree(folder / f'{split}.parts')


MAKERS = {'listops': make_listops, 'pathfinder': make_pathfinder}


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--tasks', nargs='+', choices=list(MAKERS), default=list(MAKERS))
    parser.add_argument('--size', choices=('full', 'mini'), default='full')
    parser.add_argument('--out', type=Path, default=Path('data/lra'), help='default: %(default)s')
    parser.add_argument('--seed', type=partial(at_least, 0), default=0, help='default: %(default)s')
    parser.add_argument('--workers', type=positive, default=1, help='processes that draw pictures')
    parser.add_argument(
        '--contrasts',
        choices=('equal', 'authors'),
        default='equal',
        help="brightness of Pathfinder's bars: equal, or as in the authors' generator, where "
        'distractors are brighter than paths',
    )
    parser.add_argument(
        '--count',
        type=partial(at_least, 10),
        metavar='N',
        help='N training samples, and N / 10 of the other splits',
    )
    parser.add_argument('--force', action='store_true', help='replace data made otherwise')
    args = parser.parse_args()
    parser.check_folder('--out', args.out)
    for task in args.tasks:
        settings, counts = SETTINGS[task, args.size], COUNTS[task, args.size]
        if args.count is not None:
            counts = dict(train=args.count, val=args.count // 10, test=args.count // 10)
        if task == 'pathfinder' and args.contrasts == 'authors':
            settings = settings._replace(contrasts=AUTHORS_CONTRASTS)
        folder = args.out / (task if args.size == 'full' else f'{task}_mini')
        record = dict(settings=settings._asdict(), seed=args.seed, counts=counts, version=VERSION)
        fill = partial(
            MAKERS[task], seed=args.seed, settings=settings, counts=counts, workers=args.workers
        )
        with parser.refusing(FileExistsError):
            made = make_folder(folder, record, args.force, fill)
        print(f'wrote {folder}' if made else f'{folder} is there already')


if __name__ == '__main__':
    main()
