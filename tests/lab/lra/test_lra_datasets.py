"""Data: the tools write files that the datasets read, go on where they were, and report errors.

Folders of data sets are made whole or not at all. Batches have sequences of one length.
"""

import itertools
import re

import numpy as np
import pytest
from conftest import ROOT, load_tool, output_of, refusal_of, run_script
from mmengine.dataset import DefaultSampler
from PIL import Image

from mmlaplace.lab.lra import LengthBatchSampler, LRAListOps, LRAPixels, LRAText
from mmlaplace.lab.lra.listops import END
from mmlaplace.lab.lra.storage import make_folder, read_split, write_split

MAKE = ROOT / 'tools/dataset_converters/make_lra_datasets.py'
CONVERT = ROOT / 'tools/dataset_converters/convert_lra.py'


def write(path, text) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.slow
def test_listops_is_made_once_and_replaced_only_by_force(tmp_path):
    words = (MAKE, '--size', 'mini', '--count', 40, '--out', tmp_path, '--tasks', 'listops')
    output_of(*words)
    splits = {s: LRAListOps(str(tmp_path / 'listops_mini'), s) for s in ('train', 'val', 'test')}
    assert {split: len(data) for split, data in splits.items()} == dict(train=40, val=4, test=4)
    assert len({sample['img'].tobytes() for data in splits.values() for sample in data}) == 48
    (first,) = tmp_path.glob('*/val/tokens.npy')
    before = first.read_bytes()
    assert 'is there already' in output_of(*words)
    assert 'made with other settings' in refusal_of(*words, '--seed', 1)
    assert first.read_bytes() == before
    output_of(*words, '--seed', 1, '--force')
    assert first.read_bytes() != before


@pytest.mark.slow
def test_pathfinder_that_was_cut_short_goes_on(monkeypatch, tmp_path):
    tool = load_tool('tools/dataset_converters/make_lra_datasets.py')
    monkeypatch.setattr(tool, 'PART', 3)
    counts, settings = dict(train=7, val=2, test=2), tool.MINI_PATHFINDER
    parts = tmp_path / 'cut/train.parts'
    parts.mkdir(parents=True)
    tool.make_part(parts, [0, 0], settings, 0)
    tool.make_part(parts, [1, 0], settings, 2)  # of another seed, as it would be drawn again
    for name, workers in (('cut', 1), ('whole', 2)):
        tool.make_pathfinder(tmp_path / name, 0, settings, counts, workers)
    assert not list(tmp_path.rglob('*.parts'))
    whole, cut = (LRAPixels(str(tmp_path / name), 'train') for name in ('whole', 'cut'))
    assert len(cut) == 7 and cut[0]['img'].shape == (1, 256)
    same = [np.array_equal(one['img'], other['img']) for one, other in zip(whole, cut)]
    assert same == [True] * 6 + [False]


@pytest.fixture
def written(tmp_path):
    sequences = [np.array([0, 7, END, 255]), np.array([3, END])]
    write_split(tmp_path / 'train', sequences, [1, 0], np.array([[0, 1], [1, 1]]))
    write_split(tmp_path / 'val', sequences, [1, 0])
    return str(tmp_path)


@pytest.mark.slow
def test_files_are_mapped_and_a_pair_is_padded_to_the_longer(written, tmp_path):
    assert isinstance(read_split(tmp_path / 'val').tokens, np.memmap)
    sample = LRAText(written, 'train')[0]
    assert sample['img'].tolist() == [[1, 8, END + 1, 256], [4, END + 1, 0, 0]]
    assert (sample['gt_label'], sample['img'].dtype) == (1, np.int64)
    held_out = LRAText(written, 'val', indices=-1)
    assert [sample['img'].tolist() for sample in held_out] == [[[4, END + 1]]]


@pytest.mark.parametrize(
    ('cls', 'options', 'expected'),
    [
        (LRAText, dict(max_length=2), [1, 8]),
        (LRAListOps, {}, [0, 7, END, 255]),
        (LRAListOps, dict(brackets=False, max_length=3), [0, 7, 255]),  # of the others
        (LRAPixels, {}, [1, 8, END + 1, 256]),
        (LRAPixels, dict(black_is_padding=True), [0, 7, END, 255]),
    ],
)
@pytest.mark.slow
def test_ids_are_those_of_the_option(written, cls, options, expected):
    assert cls(written, 'val', **options)[0]['img'].tolist() == [expected]


@pytest.mark.parametrize(
    ('name', 'options', 'message'),
    [
        ('listops_mini', {}, 'listops_mini/val .*; .*--size mini --tasks listops makes it'),
        ('pathfinder', {}, 'pathfinder/val .*; .*make_lra_datasets.py --tasks pathfinder makes it'),
        ('text', {}, 'text/val .*; .*convert_lra.py text SOURCE makes it from the official files'),
        ('.', dict(split='dev'), "split must be one of .*, got 'dev'"),
        ('.', dict(max_length=0), 'max_length must be at least 1, got 0'),
    ],
)
def test_data_that_are_not_there_and_wrong_options_get_a_sentence(written, name, options, message):
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        LRAText(f'{written}/{name}', **{'split': 'val', **options})


RELEASE = 'lra_release/lra_release'
PATHFINDER = f'{RELEASE}/pathfinder32/curv_contour_length_14'


def official_text(root) -> None:
    for split, label, i in itertools.product(('train', 'test'), ('pos', 'neg'), range(3)):
        write(root / f'aclImdb/{split}/{label}/{i}.txt', f'{label} é{i}')


def official_retrieval(root) -> None:
    for split in ('train', 'eval', 'test'):
        # A carriage return in a paper ends no line.
        lines = [f'1.0\ta\tb\t{split}\rone\ttwo', '0.0\tb\tc\ttwo\t' + 'x' * 10_001]
        write(root / f'{RELEASE}/tsv_data/new_aan_pairs.{split}.tsv', '\r\n'.join(lines))


def official_image(root) -> None:
    red = np.repeat(np.array([255, 0, 0], np.uint8), 1024)
    for number in range(1, 7):
        name = f'data_batch_{number}' if number < 6 else 'test_batch'
        records = [np.concatenate([[np.uint8(number)], red]) for _ in range(4)]
        write(root / f'cifar-10-batches-bin/{name}.bin', np.concatenate(records).tobytes())


def official_listops(root) -> None:
    for split in ('train', 'val', 'test'):
        text = 'Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n'
        write(root / f'{RELEASE}/listops-1000/basic_{split}.tsv', text)


def official_pathfinder(root) -> None:
    folder = root / PATHFINDER
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


def converted(task, root):
    OFFICIAL[task](root)
    output_of(CONVERT, task, root, '--out', root / 'lra')
    return str(root / 'lra' / task)


def test_reviews_are_shuffled_and_labelled(tmp_path):
    # macOS puts hidden files there when an archive is unpacked on a disk of another system.
    write(tmp_path / 'aclImdb/train/pos/._0_9.txt', b'\0\5\26\7')
    data = LRAText(converted('text', tmp_path), 'train')
    found = [(bytes(np.uint8(s['img'][0] - 1)).decode(), s['gt_label']) for s in data]
    reviews = itertools.product(('pos', 'neg'), range(3))
    assert sorted(found) == sorted((f'{k} é{i}', int(k == 'pos')) for k, i in reviews)
    assert [label for _, label in found] != sorted(label for _, label in found)


def test_papers_are_stored_once_by_split_and_cut_at_ten_thousand_characters(tmp_path):
    folder = converted('retrieval', tmp_path)
    for split, official in (('train', 'train'), ('val', 'eval'), ('test', 'test')):
        stored = read_split(tmp_path / 'lra/retrieval' / split)
        assert stored.rows.tolist() == [[0, 1], [1, 2]] and stored.labels.tolist() == [1, 0]
        papers = [bytes(stored.sequence(i)).decode() for i in range(2)]
        assert papers == [f'{official}\rone', 'two']
    assert LRAText(folder, 'val')[1]['img'].shape == (2, 10_000)


@pytest.mark.slow
def test_pictures_become_grey_and_the_last_tenth_is_held_out(tmp_path):
    folder = converted('image', tmp_path)
    splits = ('train', 'val', 'test')
    train, val, test = (LRAPixels(folder, split, black_is_padding=True) for split in splits)
    assert [len(train), len(val), len(test)] == [18, 2, 4]
    # 0.2989 * 255.5 = 76.4, of which TensorFlow drops the fraction.
    assert set(train[0]['img'].ravel()) == {76} and train[0]['img'].shape == (1, 1024)
    assert (train[0]['gt_label'], val[0]['gt_label'], test[0]['gt_label']) == (1, 5, 6)


@pytest.mark.slow
def test_official_listops_and_pathfinder_are_read(tmp_path):
    sample = LRAListOps(converted('listops', tmp_path), 'test')[0]
    assert sample['img'].tolist() == [[12, 3, 10, 15]] and sample['gt_label'] == 9
    folder = converted('pathfinder', tmp_path)
    splits = [LRAPixels(folder, split) for split in ('train', 'val', 'test')]
    assert len(splits[0]) == 7
    # Grey levels are 10 i + batch, with a label of i modulo 2. The empty file is left out.
    pictures = [(int(s['img'][0, 0]) - 1, s['gt_label']) for data in splits for s in data]
    expected = itertools.product((2, 10), range(5))
    assert sorted(pictures) == sorted((10 * i + b, i % 2) for b, i in expected if (b, i) != (2, 4))


def test_missing_official_files_are_named_with_their_source(tmp_path):
    official_image(tmp_path)
    (tmp_path / 'cifar-10-batches-bin/data_batch_4.bin').unlink()
    said = run_script(CONVERT, 'image', tmp_path, '--out', tmp_path / 'lra').stderr
    assert re.search(r'data_batch_4\.bin.*cifar-10-binary\.tar\.gz from https://', said)
    assert not (tmp_path / 'lra').exists()


@pytest.mark.parametrize('task', OFFICIAL)
def test_official_files_that_were_cut_off_get_a_sentence(tmp_path, task):
    OFFICIAL[task](tmp_path)
    for path in tmp_path.rglob('*'):
        if path.is_file() and task == 'text':
            path.unlink()  # of folders that are there
        elif path.is_file():
            path.write_bytes(path.read_bytes()[: -10_010 if task == 'retrieval' else -9])
    said = refusal_of(CONVERT, task, tmp_path, '--out', tmp_path / 'lra')
    assert re.search(r'cannot be converted \(.*; if .* unpack .*gz again', said)
    assert not (tmp_path / 'lra' / task).exists()


@pytest.mark.parametrize(
    ('picture', 'size', 'kind', 'message'),
    [
        ('imgs/2 sample_1.png', (32, 32), 'EPS', 'sample_1.png cannot be read'),  # by Ghostscript
        ('imgs/2 sample_1.png', (40, 8), 'PNG', 'sample_1.png has 40 x 8 pixels, .* 32 x 32'),
        ('.. ../../a.png', (32, 32), 'PNG', r'2.npy has the picture \.\./\.\./\.\./a.png, out of'),
        ('/etc passwd', (32, 32), 'PNG', '2.npy has the picture /etc/passwd, out of'),
    ],
)
def test_a_picture_of_another_kind_or_place_is_named(tmp_path, picture, size, kind, message):
    official_pathfinder(tmp_path)
    Image.new('L', size).save(tmp_path / PATHFINDER / 'imgs/2/sample_1.png', kind)
    write(tmp_path / PATHFINDER / 'metadata/2.npy', f'{picture} 0 0')
    said = refusal_of(CONVERT, 'pathfinder', tmp_path, '--out', tmp_path / 'lra')
    assert re.search(message, said)
    assert not (tmp_path / 'lra/pathfinder').exists()


@pytest.mark.parametrize('cut_off', [b'', b'{"se', b'\xff'])
def test_a_record_that_was_cut_off_is_one_sentence_and_force_mends_it(tmp_path, cut_off):
    for name in ('data', 'data.partial'):  # as kills while they are written leave them
        (tmp_path / name).mkdir()
        (tmp_path / name / 'made_by.json').write_bytes(cut_off)
        (tmp_path / name / 'old').touch()
    with pytest.raises(FileExistsError, match=r'no made_by\.json that can be read; --force repl'):
        make_folder(tmp_path / 'data', dict(seed=0), False, lambda folder: None)
    assert make_folder(tmp_path / 'data', dict(seed=0), True, lambda folder: None)
    names = sorted(path.name for path in tmp_path.rglob('*'))
    assert names == ['.data.lock', 'data', 'made_by.json']


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


LENGTHS = [5 - i % 5 for i in range(43)]


@pytest.fixture(scope='module')
def dataset(tmp_path_factory):
    root = tmp_path_factory.mktemp('lengths')
    write_split(root / 'train', [np.full(n, 7) for n in LENGTHS], [0] * len(LENGTHS))
    return LRAText(str(root), 'train')


def batches(dataset, **options) -> list:
    sampler = LengthBatchSampler(DefaultSampler(dataset, shuffle=False), 4, **options)
    found = list(sampler)
    assert len(sampler) == len(found)
    return found


def test_every_sample_comes_once_and_most_batches_have_one_length(dataset):
    found = batches(dataset)
    assert sorted(itertools.chain(*found)) == list(range(43))
    lengths = [[LENGTHS[i] for i in batch] for batch in found]
    # 43 samples of 5 lengths: 10 whole batches. The others come from the shortest on.
    assert all(len(set(one)) == 1 for one in lengths[:10]) and lengths[10] == [3, 4, 5]
    assert batches(dataset, drop_last=True) == found[:10]


def test_a_width_puts_neighbouring_lengths_together(dataset):
    groups = [{(LENGTHS[i] - 1) // 2 for i in batch} for batch in batches(dataset, width=2)]
    assert all({group} in groups for group in range(3))
    with pytest.raises(ValueError, match='width must .*got 0'):
        batches(dataset, width=0)
    with pytest.raises(ValueError, match='must have a method length.*list has none'):
        batches([1, 2])


@pytest.mark.slow
def test_padding_does_not_count_and_of_two_sequences_the_longer_does(tmp_path):
    write_split(tmp_path / 'train', [[0, 5, 0, 6], [1, 2, 3, 4]], [0], rows=np.array([[0, 1]]))
    write_split(tmp_path / 'val', [[0, 5, 0, 6]], [0])
    assert LRAText(str(tmp_path), 'train').length(0) == 4
    assert LRAText(str(tmp_path), 'train', max_length=3).length(0) == 3
    assert LRAPixels(str(tmp_path), 'val', black_is_padding=True).length(0) == 2
