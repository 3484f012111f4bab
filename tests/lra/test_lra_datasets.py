"""Data: the tools write what the datasets read, go on where they were, and say what is missing."""

import functools
import json
import re

import numpy as np
import pytest
from conftest import ROOT, load_tool, run_script
from PIL import Image

from mmlaplace.lra import LRAListOps, LRAPixels, LRAText
from mmlaplace.lra.listops import END
from mmlaplace.lra.storage import make_folder, read_split, write_split

MAKE = ROOT / 'tools/dataset_converters/make_lra_datasets.py'
CONVERT = ROOT / 'tools/dataset_converters/convert_lra.py'


def made(out, *arguments):
    return run_script(MAKE, '--size', 'mini', '--count', 40, '--out', out, *arguments)


def content(folder) -> dict:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob('*.npy')}


def test_listops_has_the_samples_that_were_asked_for_once_each(tmp_path):
    said = made(tmp_path, '--tasks', 'listops')
    assert said.returncode == 0, said.stderr
    splits = {s: LRAListOps(str(tmp_path / 'listops_mini'), s) for s in ('train', 'val', 'test')}
    assert {split: len(data) for split, data in splits.items()} == dict(train=40, val=4, test=4)
    samples = [data[i] for data in splits.values() for i in range(len(data))]
    assert len({sample['img'].tobytes() for sample in samples}) == 48
    record = json.loads((tmp_path / 'listops_mini/made_by.json').read_text())
    assert (record['seed'], record['counts']['train']) == (0, 40)


def test_a_data_set_is_made_once_and_replaced_only_by_force(tmp_path):
    first = made(tmp_path, '--tasks', 'listops')
    before = content(tmp_path)
    again = made(tmp_path, '--tasks', 'listops')
    assert 'wrote' in first.stdout and 'is there already' in again.stdout
    other = made(tmp_path, '--tasks', 'listops', '--seed', 1)
    assert other.returncode == 2
    assert 'listops_mini exists and was made with other settings' in other.stderr
    assert content(tmp_path) == before
    assert made(tmp_path, '--tasks', 'listops', '--seed', 1, '--force').returncode == 0
    assert content(tmp_path) != before


def test_too_few_samples_or_workers_are_refused(tmp_path):
    assert 'at least 10' in made(tmp_path, '--count', 9).stderr
    assert '--workers (0)' in made(tmp_path, '--workers', 0).stderr
    assert '--seed -1: 0 or more' in made(tmp_path, '--seed', -1).stderr


@pytest.fixture
def small_parts(monkeypatch):
    """The tool, with pictures in parts of three."""
    tool = load_tool('tools/dataset_converters/make_lra_datasets.py')
    monkeypatch.setattr(tool, 'PART', 3)
    return tool


def pathfinder(tool, folder, workers=1) -> None:
    counts = dict(train=7, val=2, test=2)
    make_folder(
        folder, dict(seed=0), False,
        functools.partial(
            tool.make_pathfinder, seed=0, settings=tool.MINI_PATHFINDER, counts=counts,
            workers=workers,
        ),
    )  # fmt: skip


def test_pathfinder_that_was_cut_short_goes_on_and_gives_the_same(small_parts, tmp_path):
    pathfinder(small_parts, tmp_path / 'whole', workers=2)
    partial = tmp_path / 'cut.partial'
    partial.mkdir()
    (partial / 'made_by.json').write_text('{"seed": 0}')
    parts = partial / 'train.parts'
    parts.mkdir()
    for number in (0, 2):
        small_parts.make_part(parts, [0, 0], small_parts.MINI_PATHFINDER, number)
    times = {path.name: path.stat().st_mtime_ns for path in parts.iterdir()}
    kept = {}
    original = small_parts.write_split

    def noticing(folder, *arguments):
        kept.update({p.name: p.stat().st_mtime_ns for p in parts.iterdir() if p.name in times})
        original(folder, *arguments)

    small_parts.write_split = noticing
    try:
        pathfinder(small_parts, tmp_path / 'cut')
    finally:
        small_parts.write_split = original
    assert kept == times  # not drawn again
    assert content(tmp_path / 'cut') == content(tmp_path / 'whole')
    assert not partial.exists() and not list((tmp_path / 'cut').glob('*.parts'))
    data = LRAPixels(str(tmp_path / 'cut'), 'train')
    assert len(data) == 7 and data[0]['img'].shape == (1, 256)


def test_what_another_record_left_is_not_used(tmp_path):
    partial = tmp_path / 'data.partial'
    partial.mkdir()
    (partial / 'made_by.json').write_text('{"seed": 1}')
    (partial / 'old').touch()
    assert make_folder(tmp_path / 'data', dict(seed=0), False, lambda folder: None)
    assert not (tmp_path / 'data/old').exists()
    assert not make_folder(tmp_path / 'data', dict(seed=0), False, None)


def test_what_is_replaced_stays_until_the_new_is_whole(tmp_path):
    folder = tmp_path / 'data'
    make_folder(folder, dict(seed=0), False, lambda place: (place / 'old').touch())

    def full_disk(place):
        (place / 'new').touch()
        raise OSError(28, 'No space left on device')

    with pytest.raises(OSError, match='No space left'):
        make_folder(folder, dict(seed=1), True, full_disk)
    assert (folder / 'old').is_file()
    assert not make_folder(folder, dict(seed=0), False, None)
    assert make_folder(folder, dict(seed=1), True, lambda place: None)  # goes on with what is there
    names = sorted(path.name for path in tmp_path.rglob('*'))
    assert names == ['.data.lock', 'data', 'made_by.json', 'new']


@pytest.fixture
def written(tmp_path):
    sequences = [np.array([0, 7, END, 255]), np.array([3, END])]
    write_split(tmp_path / 'train', sequences, [1, 0], np.array([[0, 1], [1, 1]]))
    write_split(tmp_path / 'val', sequences, [1, 0])
    return str(tmp_path)


def test_files_are_mapped_and_give_what_was_written(written, tmp_path):
    split = read_split(tmp_path / 'val')
    assert isinstance(split.tokens, np.memmap)
    assert [split.sequence(i).tolist() for i in (0, 1)] == [[0, 7, END, 255], [3, END]]
    assert split.labels.tolist() == [1, 0] and split.rows.tolist() == [[0], [1]]


def test_a_pair_is_padded_to_the_longer(written):
    sample = LRAText(written, 'train')[0]
    assert sample['img'].tolist() == [[1, 8, END + 1, 256], [4, END + 1, 0, 0]]
    assert (sample['gt_label'], sample['img'].dtype) == (1, np.int64)


@pytest.mark.parametrize(
    ('cls', 'options', 'expected'),
    [
        (LRAText, {}, [1, 8, END + 1, 256]),
        (LRAText, dict(max_length=2), [1, 8]),
        (LRAListOps, {}, [0, 7, END, 255]),
        (LRAListOps, dict(brackets=False), [0, 7, 255]),
        (LRAListOps, dict(brackets=False, max_length=3), [0, 7, 255]),  # of what is left
        (LRAPixels, {}, [1, 8, END + 1, 256]),
        (LRAPixels, dict(black_is_padding=True), [0, 7, END, 255]),
    ],
)
def test_ids_are_those_of_the_option(written, cls, options, expected):
    assert cls(written, 'val', **options)[0]['img'].tolist() == [expected]


def test_the_last_samples_can_be_held_out(written):
    data = LRAText(written, 'val', indices=-1)
    assert len(data) == 1 and data[0]['img'].tolist() == [[4, END + 1]]


@pytest.mark.parametrize(
    ('cls', 'name', 'command'),
    [
        (LRAListOps, 'listops', 'make_lra_datasets.py --tasks listops makes it'),
        (LRAListOps, 'listops_mini', '--size mini --tasks listops makes it'),
        (LRAPixels, 'pathfinder', 'make_lra_datasets.py --tasks pathfinder makes it'),
        (LRAPixels, 'image', r'convert_lra.py image SOURCE makes it from the official files'),
        (LRAText, 'text', r'convert_lra.py text SOURCE makes it'),
        (LRAText, 'retrieval', r'convert_lra.py retrieval SOURCE makes it'),
    ],
)
def test_data_that_are_not_there_say_what_makes_them(tmp_path, cls, name, command):
    with pytest.raises(FileNotFoundError, match=f'{name}/test is not there; .*{command}'):
        cls(str(tmp_path / name), 'test')


def test_wrong_options_are_quoted(written):
    with pytest.raises(ValueError, match="split must be one of .*, got 'dev'"):
        LRAText(written, 'dev')
    with pytest.raises(ValueError, match='max_length must be at least 1, got 0'):
        LRAText(written, 'val', max_length=0)


def write(path, text) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def official_text(root) -> None:
    for split in ('train', 'test'):
        for label in ('pos', 'neg'):
            for i in range(3):
                write(root / f'aclImdb/{split}/{label}/{i}.txt', f'{label} é{i}')


def official_retrieval(root) -> None:
    for split in ('train', 'eval', 'test'):
        lines = ['1.0\ta\tb\tone\ttwo', '0.0\tb\tc\ttwo\t' + 'x' * 10_001]
        write(
            root / f'lra_release/lra_release/tsv_data/new_aan_pairs.{split}.tsv', '\n'.join(lines)
        )


def official_image(root) -> None:
    red = np.repeat(np.array([255, 0, 0], np.uint8), 1024)
    for number in range(1, 7):
        name = f'data_batch_{number}' if number < 6 else 'test_batch'
        records = [np.concatenate([[np.uint8(number)], red]) for _ in range(4)]
        write(root / f'cifar-10-batches-bin/{name}.bin', np.concatenate(records).tobytes())


def official_listops(root) -> None:
    for split in ('train', 'val', 'test'):
        text = 'Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n'
        write(root / f'lra_release/lra_release/listops-1000/basic_{split}.tsv', text)


def official_pathfinder(root) -> None:
    folder = root / 'lra_release/lra_release/pathfinder32/curv_contour_length_14'
    for batch in (10, 2):
        lines = [f'imgs/{batch} sample_{i}.png {i} {i % 2} 1.0 14' for i in range(5)]
        write(folder / f'metadata/{batch}.npy', '\n'.join(lines))
        (folder / f'imgs/{batch}').mkdir(parents=True)
        for i in range(5):
            picture = Image.fromarray(np.full((32, 32), 10 * i + batch, np.uint8))
            picture.save(folder / f'imgs/{batch}/sample_{i}.png')
    # As one of the official files is.
    (folder / 'imgs/2/sample_4.png').write_bytes(b'')


OFFICIAL = {
    'text': official_text,
    'retrieval': official_retrieval,
    'image': official_image,
    'listops': official_listops,
    'pathfinder': official_pathfinder,
}


def converted(task, tmp_path):
    OFFICIAL[task](tmp_path / 'official')
    said = run_script(CONVERT, task, tmp_path / 'official', '--out', tmp_path / 'lra')
    assert said.returncode == 0, said.stderr
    return str(tmp_path / 'lra' / task)


def test_reviews_are_shuffled_and_labelled(tmp_path):
    data = LRAText(converted('text', tmp_path), 'train')
    found = [(bytes(np.uint8(s['img'][0] - 1)).decode(), s['gt_label']) for s in data]
    assert sorted(found) == sorted(
        (f'{k} é{i}', int(k == 'pos')) for k in ('pos', 'neg') for i in range(3)
    )
    assert [label for _, label in found] != sorted(label for _, label in found)


def test_papers_are_stored_once_and_cut_at_ten_thousand_characters(tmp_path):
    folder = converted('retrieval', tmp_path)
    split = read_split(tmp_path / 'lra/retrieval/val')
    assert split.rows.tolist() == [[0, 1], [1, 2]] and split.labels.tolist() == [1, 0]
    data = LRAText(folder, 'val')
    assert data[1]['img'].shape == (2, 10_000)
    assert bytes(np.uint8(data[0]['img'][0] - 1)) == b'one'


def test_each_split_of_papers_comes_from_the_official_one(tmp_path):
    for split in ('train', 'eval', 'test'):
        file = tmp_path / f'lra_release/tsv_data/new_aan_pairs.{split}.tsv'
        write(file, f'1.0\ta\tb\t{split}\ttwo\n')
    said = run_script(CONVERT, 'retrieval', tmp_path, '--out', tmp_path)
    assert said.returncode == 0, said.stderr
    splits = [read_split(tmp_path / 'retrieval' / name) for name in ('train', 'val', 'test')]
    assert [bytes(split.sequence(0)) for split in splits] == [b'train', b'eval', b'test']


def test_pictures_become_grey_and_the_last_tenth_is_held_out(tmp_path):
    folder = converted('image', tmp_path)
    train, val, test = (
        LRAPixels(folder, s, black_is_padding=True) for s in ('train', 'val', 'test')
    )
    assert [len(train), len(val), len(test)] == [18, 2, 4]
    # 0.2989 * 255.5 = 76.4, of which TensorFlow drops the fraction.
    assert set(train[0]['img'].ravel()) == {76} and train[0]['img'].shape == (1, 1024)
    assert (train[0]['gt_label'], val[0]['gt_label'], test[0]['gt_label']) == (1, 5, 6)


@pytest.mark.slow
def test_official_listops_and_pathfinder_are_read(tmp_path):
    sample = LRAListOps(converted('listops', tmp_path), 'test')[0]
    assert sample['img'].tolist() == [[12, 3, 10, 15]] and sample['gt_label'] == 9
    folder = converted('pathfinder', tmp_path)
    samples = [s for split in ('train', 'val', 'test') for s in LRAPixels(folder, split)]
    assert len(samples) == 9  # the empty file is left out
    pixels = sorted(int(sample['img'][0, 0]) - 1 for sample in samples)
    assert pixels == sorted(10 * i + b for b in (2, 10) for i in range(5) if (b, i) != (2, 4))
    for sample in samples:  # grey levels are 10 i + batch, with a label of i modulo 2
        value = int(sample['img'][0, 0]) - 1
        i = value // 10 if value % 10 else value // 10 - 1
        assert sample['gt_label'] == i % 2


@pytest.mark.parametrize(
    ('task', 'message'),
    [
        ('text', r'aclImdb/train/pos; get aclImdb_v1\.tar\.gz from https://ai\.stanford\.edu'),
        ('retrieval', r'new_aan_pairs\.train\.tsv; get lra_release\.gz from https://storage'),
        ('image', r'data_batch_1\.bin; get cifar-10-binary\.tar\.gz from https://www\.cs\.toronto'),
    ],
)
def test_missing_official_files_are_named_with_their_source_and_folder(tmp_path, task, message):
    said = run_script(CONVERT, task, tmp_path, '--out', tmp_path / 'lra')
    assert said.returncode == 1
    assert re.search(f'there is no {re.escape(str(tmp_path))}.*{message}', said.stderr)
    assert f'unpack it in {tmp_path}' in said.stderr
    assert not (tmp_path / 'lra').exists()


def test_the_one_missing_file_of_many_is_named(tmp_path):
    official_image(tmp_path)
    (tmp_path / 'cifar-10-batches-bin/data_batch_4.bin').unlink()
    said = run_script(CONVERT, 'image', tmp_path, '--out', tmp_path / 'lra')
    assert 'there is no' in said.stderr and 'data_batch_4.bin; get' in said.stderr


def test_hidden_files_beside_the_official_ones_are_no_samples(tmp_path):
    """macOS puts them there when an archive is unpacked on a disk of another system."""
    for split in ('train', 'test'):
        for label in ('pos', 'neg'):
            write(tmp_path / f'official/aclImdb/{split}/{label}/._0_9.txt', b'\0\5\26\7')
    data = LRAText(converted('text', tmp_path), 'train')
    assert len(data) == 6
    metadata = 'lra_release/lra_release/pathfinder32/curv_contour_length_14/metadata'
    write(tmp_path / f'official/{metadata}/._2.npy', b'\0\5\26\7')
    data = LRAPixels(converted('pathfinder', tmp_path), 'train')
    assert len(data) == 7


def test_a_carriage_return_in_a_paper_ends_no_line(tmp_path):
    OFFICIAL['retrieval'](tmp_path)
    file = tmp_path / 'lra_release/lra_release/tsv_data/new_aan_pairs.eval.tsv'
    file.write_bytes(b'1.0\t1\t2\ta\rb\tc\r\n')
    said = run_script(CONVERT, 'retrieval', tmp_path, '--out', tmp_path / 'lra')
    assert said.returncode == 0, said.stderr
    split = read_split(tmp_path / 'lra/retrieval/val')
    assert [bytes(split.sequence(i)) for i in range(2)] == [b'a\rb', b'c']


@pytest.mark.parametrize('task', ['text', 'retrieval', 'image', 'listops', 'pathfinder'])
def test_official_files_that_were_cut_off_get_a_sentence(tmp_path, task):
    OFFICIAL[task](tmp_path)
    files = [path for path in tmp_path.rglob('*') if path.is_file() and path.stat().st_size]
    for path in files:
        if task == 'text':
            path.unlink()  # of folders that are there
        elif task == 'retrieval':
            path.write_bytes(path.read_bytes().rsplit(b'\t', 2)[0])
        else:
            path.write_bytes(path.read_bytes()[:-9])
    said = run_script(CONVERT, task, tmp_path, '--out', tmp_path / 'lra')
    assert said.returncode == 2, said.stderr
    assert re.search(r'cannot be converted \(.*; if it is not whole, unpack .*gz ag', said.stderr)
    assert not (tmp_path / 'lra' / task).exists()
