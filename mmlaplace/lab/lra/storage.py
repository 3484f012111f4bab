"""Sequences of different lengths on disk, read one by one without loading all of them."""

import json
import shutil
from pathlib import Path
from typing import Callable, Iterable, NamedTuple, Optional, Sequence

import numpy as np
from filelock import FileLock


class Split(NamedTuple):
    """One split of a data set. The files are memory-mapped, so processes share the memory.

    Attributes:
        tokens: All sequences, one after the other, uint8.
        offsets: Where each sequence starts, and the end of the last, int64.
        labels: Class of each sample, int64.
        rows: Which sequences are a sample, ``(samples, 1)`` or ``(samples, 2)`` for pairs.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray
    rows: np.ndarray

    def sequence(self, index: int) -> np.ndarray:
        """One sequence of bytes."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def write_split(
    folder: Path,
    sequences: Iterable[np.ndarray],
    labels: Sequence[int],
    rows: Optional[np.ndarray] = None,
) -> None:
    """Write sequences of bytes and labels into a folder that :func:`read_split` reads.

    Args:
        folder: Folder of the files. It is created.
        sequences: Arrays of values from 0 to 255.
        labels: Class of each sample.
        rows: Which sequences are a sample. Default: each is one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sequences = [np.asarray(sequence, np.uint8) for sequence in sequences]
    lengths = [len(sequence) for sequence in sequences]
    rows = np.arange(len(sequences))[:, None] if rows is None else rows
    np.save(folder / 'tokens.npy', np.concatenate(sequences))
    np.save(folder / 'offsets.npy', np.cumsum([0, *lengths]))
    np.save(folder / 'labels.npy', np.asarray(labels, np.int64))
    np.save(folder / 'rows.npy', np.asarray(rows, np.int64))


def read_split(folder: Path) -> Split:
    """Read a split that :func:`write_split` wrote.

    Raises:
        FileNotFoundError: If a file is missing.
    """
    arrays = (
        np.load(folder / f'{name}.npy', mmap_mode='r', allow_pickle=False) for name in Split._fields
    )
    return Split(*arrays)


def make_folder(folder: Path, record: dict, force: bool, fill: Callable[[Path], None]) -> bool:
    """Make the folder of a data set, whole or not at all.

    It is filled under another name, ``*.partial``, and renamed at the end. If a run is interrupted,
    the next run with the same record continues with its files. A folder that is replaced stays
    until the new one is whole, so the disk needs room for both. A second call for the same folder
    waits for the first.

    Args:
        folder: Folder of the data set.
        record: Settings that the content depends on, kept in ``made_by.json``.
        force: Whether a folder with another record, or without a readable record, is replaced.
        fill: Writes the content into the folder that it is given.

    Returns:
        Whether it was made. False if it is there already, with the same record.

    Raises:
        FileExistsError: If it is there with another record, or without a readable record, and
            ``force`` is false.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    record = json.loads(json.dumps(record))  # as it is read
    unfinished, replaced = (
        folder.with_name(f'{folder.name}.{end}') for end in ('partial', 'replaced')
    )
    with FileLock(folder.with_name(f'.{folder.name}.lock')):
        if folder.exists():
            kept, why = _record_in(folder), 'was made with other settings or by another version'
            if kept == record:
                return False
            if not force:
                why = 'has no made_by.json that can be read' if kept is None else why
                raise FileExistsError(f'{folder} exists and {why}; --force replaces it')
        if _record_in(unfinished) != record:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            (unfinished / 'made_by.json').write_text(json.dumps(record))
        fill(unfinished)
        if folder.exists():
            _remove(replaced)  # of a run that was killed between the next lines
            folder.rename(replaced)
        unfinished.rename(folder)
        _remove(replaced)
    return True


def _record_in(folder: Path) -> Optional[dict]:
    """The settings that a folder's data was made with, or None if they cannot be read."""
    try:
        return json.loads((folder / 'made_by.json').read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # empty or cut off, by a kill
        return None


def _remove(folder: Path) -> None:
    """Remove a folder, or a link to a folder, if it is there."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
