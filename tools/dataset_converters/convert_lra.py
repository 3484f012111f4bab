"""Convert the official files of a task of Long Range Arena into the form that its configs read.

  task        the official files, in SOURCE
  text        aclImdb_v1.tar.gz, unpacked: aclImdb/{train,test}/{pos,neg}/*.txt
  retrieval   lra_release.gz, unpacked: lra_release/tsv_data/new_aan_pairs.*.tsv
  image       cifar-10-binary.tar.gz, unpacked: cifar-10-batches-bin/*.bin
  listops     lra_release.gz, unpacked: lra_release/listops-1000/basic_*.tsv
  pathfinder  lra_release.gz, unpacked: lra_release/pathfinder32/curv_contour_length_14/

The tool downloads nothing. If the files are missing, it says where they come from and into which
folder they go. make_lra_datasets.py makes ListOps and Pathfinder without them.

Examples:
  python tools/dataset_converters/convert_lra.py text
  python tools/dataset_converters/convert_lra.py retrieval /data/lra_release --out data/lra
"""

import sys
from functools import partial
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np
from PIL import Image
from rich.progress import track

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.lab.lra.listops import tokenize
from mmlaplace.lab.lra.storage import make_folder, write_split

VERSION = 1  # raise it when other samples come out
OFFICIAL = Path('data/lra_official')
SEEN = '[!.]*'  # macOS puts a hidden file of its own beside each on some disks
MOST_CHARACTERS = 10_000  # of a paper, as the official reader takes them
SIDE = 32  # pixels of Pathfinder's pictures
GREY = np.array([0.2989, 0.5870, 0.1140], np.float32)
RELEASE = 'lra_release.gz', 'https://storage.googleapis.com/long-range-arena/lra_release.gz'
IMDB = 'aclImdb_v1.tar.gz', 'https://ai.stanford.edu/~amaas/data/sentiment/'
CIFAR = 'cifar-10-binary.tar.gz', 'https://www.cs.toronto.edu/~kriz/cifar.html'


def convert_text(source: Path, out: Path) -> None:
    """Reviews in a fixed random order, so that the last tenth can be held out."""
    for number, split in enumerate(('train', 'test')):
        files = [
            (path, label)
            for label, folder in enumerate(('neg', 'pos'))
            for path in sorted((source / split / folder).glob(f'{SEEN}.txt'))
        ]
        order = np.random.default_rng(number).permutation(len(files))
        chosen = [files[i] for i in track(order, f'text {split}', transient=True)]
        sequences = [np.frombuffer(path.read_bytes(), np.uint8) for path, _ in chosen]
        write_split(out / split, sequences, [label for _, label in chosen])


def convert_retrieval(source: Path, out: Path) -> None:
    """Pairs of papers. A paper is stored once in a split, however many pairs it is in."""
    for split, official in (('train', 'train'), ('val', 'eval'), ('test', 'test')):
        numbers: Dict[str, int] = {}
        labels, rows = [], []
        file = source / f'tsv_data/new_aan_pairs.{official}.tsv'
        with file.open(encoding='utf-8', newline='\n') as lines:  # a \r of a paper ends no line
            for line in track(lines, f'retrieval {split}', total=None, transient=True):
                label, _, _, one, two = line.rstrip('\r\n').split('\t')
                pair = [text[:MOST_CHARACTERS] for text in (one, two)]
                rows.append([numbers.setdefault(text, len(numbers)) for text in pair])
                labels.append(int(float(label)))
        papers = (np.frombuffer(text.encode(), np.uint8) for text in numbers)
        write_split(out / split, papers, labels, np.array(rows))


def grey(pixels: np.ndarray) -> np.ndarray:
    """``(N, 3, 1024)`` to ``(N, 1024)``, rounded as TensorFlow does."""
    levels = np.einsum('c,ncp->np', GREY, pixels.astype(np.float32) / 255)
    return np.uint8(np.minimum(levels * 255.5, 255))


def convert_image(source: Path, out: Path) -> None:
    """The first 45,000 training pictures, the other 5,000, and the test pictures."""

    def read(names: List[str]) -> Tuple[np.ndarray, np.ndarray]:
        records = [np.fromfile(source / name, np.uint8).reshape(-1, 3073) for name in names]
        content = np.concatenate(records)
        return grey(content[:, 1:].reshape(-1, 3, 1024)), content[:, 0]

    pixels, labels = read([f'data_batch_{i}.bin' for i in range(1, 6)])
    cut = len(labels) * 9 // 10
    write_split(out / 'train', pixels[:cut], labels[:cut])
    write_split(out / 'val', pixels[cut:], labels[cut:])
    write_split(out / 'test', *read(['test_batch.bin']))


def convert_listops(source: Path, out: Path) -> None:
    for split in ('train', 'val', 'test'):
        table = source / f'listops-1000/basic_{split}.tsv'
        lines = table.read_text(encoding='utf-8').splitlines()[1:]
        pairs = [line.split('\t') for line in track(lines, f'listops {split}', transient=True)]
        write_split(out / split, [tokenize(text) for text, _ in pairs], [int(v) for _, v in pairs])


def pathfinder_files(source: Path) -> Iterator[Tuple[Path, int]]:
    """Pictures and labels, batch by batch. One of the official files is empty and left out.

    Raises:
        ValueError: If a name leads out of the folder.
    """
    files = (source / 'metadata').glob(f'{SEEN}.npy')
    for metadata in sorted(files, key=lambda path: int(path.stem)):
        for line in metadata.read_text(encoding='utf-8').splitlines():  # text, in spite of its name
            folder, name, _, label = line.split()[:4]
            path = source / folder / name
            if '..' in path.parts or source not in path.parents:
                raise ValueError(f'{metadata} has the picture {folder}/{name}, out of {source}')
            if path.stat().st_size:
                yield path, int(label)


def read_picture(path: Path) -> np.ndarray:
    """The grey values of a picture, in a row.

    Raises:
        ValueError: If it is cut off, no PNG or of another size. The message names it.
    """
    try:
        with Image.open(path, formats=('PNG',)) as picture:  # other formats may start programs
            if picture.size != (SIDE, SIDE):
                raise ValueError(
                    f'{path} has {picture.width} x {picture.height} pixels, but those of the task '
                    f'have {SIDE} x {SIDE}'
                )
            return np.asarray(picture.convert('L')).reshape(-1)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f'{path} cannot be read: {error}') from error


def convert_pathfinder(source: Path, out: Path) -> None:
    """80, 10 and 10 % of the pictures in a fixed random order, as none is official."""
    source = source / 'pathfinder32/curv_contour_length_14'
    files = list(pathfinder_files(source))
    order = np.random.default_rng(0).permutation(len(files))
    cuts = [len(files) * tenths // 10 for tenths in (0, 8, 9, 10)]
    for split, start, stop in zip(('train', 'val', 'test'), cuts, cuts[1:]):
        chosen = [files[i] for i in track(order[start:stop], f'pathfinder {split}', transient=True)]
        pixels = [read_picture(path) for path, _ in chosen]
        write_split(out / split, pixels, [label for _, label in chosen])


class Task(NamedTuple):
    """What a task is converted from, and by what."""

    convert: Callable[[Path, Path], None]
    folder: str
    needs: Tuple[str, ...]
    archive: Tuple[str, str]


REVIEWS = tuple(f'{split}/{label}' for split in ('train', 'test') for label in ('pos', 'neg'))
PAPERS = tuple(f'tsv_data/new_aan_pairs.{split}.tsv' for split in ('train', 'eval', 'test'))
BATCHES = (*(f'data_batch_{i}.bin' for i in range(1, 6)), 'test_batch.bin')
LISTS = tuple(f'listops-1000/basic_{split}.tsv' for split in ('train', 'val', 'test'))
PATHS = ('pathfinder32/curv_contour_length_14/metadata',)
TASKS = {
    'text': Task(convert_text, 'aclImdb', REVIEWS, IMDB),
    'retrieval': Task(convert_retrieval, 'lra_release', PAPERS, RELEASE),
    'image': Task(convert_image, 'cifar-10-batches-bin', BATCHES, CIFAR),
    'listops': Task(convert_listops, 'lra_release', LISTS, RELEASE),
    'pathfinder': Task(convert_pathfinder, 'lra_release', PATHS, RELEASE),
}


def find_source(task: Task, source: Path) -> Path:
    """The folder that has all files of a task. The official archive has one inside of another."""
    places = (source / task.folder, source / task.folder / task.folder, source)
    for place in places:
        if all((place / name).exists() for name in task.needs):
            return place
    lacking = {place: [n for n in task.needs if not (place / n).exists()] for place in places}
    nearest = min(places, key=lambda place: len(lacking[place]))
    archive, address = task.archive
    sys.exit(
        f'there is no {nearest / lacking[nearest][0]}. Download {archive} from {address} and '
        f'unpack it in {source}, so that {source / task.folder} has {task.needs[0]}, or give the '
        'folder with it as SOURCE'
    )


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('task', choices=list(TASKS))
    parser.add_argument(
        'source',
        type=Path,
        nargs='?',
        default=OFFICIAL,
        metavar='SOURCE',
        help='folder of the official files, or one above it; default: %(default)s',
    )
    parser.add_argument('--out', type=Path, default=Path('data/lra'), help='default: %(default)s')
    parser.add_argument('--force', action='store_true', help='replace data made otherwise')
    args = parser.parse_args()
    parser.check_folder('--out', args.out)
    task = TASKS[args.task]
    source = find_source(task, args.source)
    record = dict(official=task.archive[0], task=args.task, version=VERSION)
    try:
        made = make_folder(args.out / args.task, record, args.force, partial(task.convert, source))
    except FileExistsError as error:
        parser.error(str(error))
    except (ValueError, OSError) as error:
        parser.error(
            f'{source} cannot be converted ({type(error).__name__}: {error}); if files are '
            f'incomplete, unpack {task.archive[0]} again'
        )
    print(f'wrote {args.out / args.task}' if made else f'{args.out / args.task} is there already')


if __name__ == '__main__':
    main()
