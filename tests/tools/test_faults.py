"""What breaks a run from outside, such as a kill or a full disk, is said, and nothing is lost."""

import logging
import os
import shutil
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from conftest import MICRO, micro_config
from mmcv.transforms import LoadImageFromFile
from mmengine import fileio
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

from mmlaplace.engine import AtomicCheckpointHook, DamagedImageError, WholeFileBackend
from mmlaplace.engine.whole_files import check_image


def test_a_file_that_does_not_fit_keeps_what_it_replaces(tmp_path, full_disk):
    path = tmp_path / 'epoch_1.pth'
    path.write_bytes(b'whole')
    message = 'epoch_1.pth could not be saved, 0.0 MiB: File too large.* --resume'
    with full_disk, pytest.raises(OSError, match=message):
        WholeFileBackend().put(b'new', path)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b'whole'
    fileio.put(b'new', path, backend_args=dict(backend='whole'))  # by its name in configs
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b'new'


def runner_of(tmp_path, save=Path.touch, **options) -> tuple:
    """A runner whose checkpoints are written by ``save``; what was there before each of them."""

    def save_checkpoint(out_dir, filename, *args, **kwargs):
        assert kwargs['backend_args'] == dict(backend='whole')
        there.append(names(tmp_path))
        save(Path(out_dir) / filename)

    there = []
    return there, SimpleNamespace(
        work_dir=str(tmp_path),
        epoch=1,
        iter=8,
        max_epochs=4,
        logger=logging.getLogger('quiet'),
        message_hub=MessageHub(f'of {tmp_path}'),
        save_checkpoint=save_checkpoint,
    )


def names(folder) -> list:
    return sorted(path.name for path in folder.iterdir() if path.name != 'last_checkpoint')


def test_what_a_killed_run_left_half_written_goes_but_not_of_a_running_one(tmp_path):
    # A folder has the start of a long name. Other programs name their files so, too.
    best, others = 'best_single-label_precision_epoch_100.pth', 'epoch_1.pth.a1b2.partial'
    for name, folder, age in (
        ('epoch_3.pth', 'epoch_3.pth.killed.partial', 3700),
        ('epoch_3.pth', 'epoch_3.pth.running.partial', 0),
        (best, f'{best[:40]}.killed.partial', 3700),
        (best, 'copies.partial', 3700),
    ):
        file = tmp_path / folder / name
        file.parent.mkdir()
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
        os.utime(file.parent, (time.time() - 3700,) * 2)  # of when its file was made
    (tmp_path / others).touch()
    hook = AtomicCheckpointHook()
    hook.before_train(runner_of(tmp_path)[1])
    assert hook.backend_args == dict(backend='whole')
    assert names(tmp_path) == ['copies.partial', others, 'epoch_3.pth.running.partial']


def test_the_best_so_far_is_removed_when_the_new_best_is_whole(tmp_path):
    there, runner = runner_of(tmp_path)
    hook = AtomicCheckpointHook(save_best=['acc', 'loss'])
    hook.before_train(runner)
    hook.after_val_epoch(runner, dict(acc=1.0, loss=3.0))
    # Again in this epoch: the new file has the name of the old one.
    hook.after_val_epoch(runner, dict(acc=2.0, loss=3.0))
    assert names(tmp_path) == ['best_acc_epoch_1.pth', 'best_loss_epoch_1.pth']
    runner.epoch = 2
    hook.after_val_epoch(runner, dict(acc=3.0, loss=4.0))
    assert names(tmp_path) == ['best_acc_epoch_2.pth', 'best_loss_epoch_1.pth']
    assert there[-1] == ['best_acc_epoch_1.pth', 'best_loss_epoch_1.pth']


@pytest.mark.parametrize('save', [Path.touch, Path.mkdir])  # DeepSpeed's checkpoint is a folder
@pytest.mark.parametrize('kept', [2, 4])
def test_what_is_outdated_goes_when_the_new_checkpoint_is_whole(tmp_path, save, kept, monkeypatch):
    there, runner = runner_of(tmp_path, save)
    # All are kept by default.
    hook = AtomicCheckpointHook(interval=1, **dict(max_keep_ckpts=kept) if kept < 4 else {})
    hook.before_train(runner)
    for runner.epoch in range(4):
        hook.after_train_epoch(runner)
    full = mock.Mock(side_effect=OSError('full disk'))
    monkeypatch.setattr(WholeFileBackend, 'put', full)  # of last_checkpoint; epoch_5 is whole
    runner.epoch = 4
    with pytest.raises(OSError, match='full disk'):
        hook.after_train_epoch(runner)
    assert Path((tmp_path / 'last_checkpoint').read_text()).name == 'epoch_4.pth'
    files = [f'epoch_{epoch}.pth' for epoch in range(1, 5)]
    assert there == [files[max(0, n - kept) : n] for n in range(5)]
    assert names(tmp_path) == [*there[-1], 'epoch_5.pth']


def test_an_image_of_more_pixels_than_pillow_opens_is_left_to_the_loader(tmp_path, monkeypatch):
    Image.new('L', (40, 30)).save(tmp_path / 'map.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 500)  # it refuses twice as many
    found = fileio.get(tmp_path / 'map.png', backend_args=dict(backend='whole'))
    assert found == (tmp_path / 'map.png').read_bytes()


UNKNOWN = {  # to Pillow, as they begin
    'six_bands.tif': b'II*\x00' + bytes(40),
    'depth.pfm': b'PF\n2 2\n-1.0\n' + bytes(48),
    'light.hdr': b'#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 2 +X 2\n' + bytes(16),
    'own.npy': b'\x93NUMPY' + bytes(40),
}


@pytest.mark.parametrize('name', UNKNOWN)
def test_a_format_that_pillow_does_not_know_is_left_to_the_loader(name, tmp_path):
    (tmp_path / name).write_bytes(UNKNOWN[name])
    found = fileio.get(tmp_path / name, backend_args=dict(backend='whole'))
    assert found == UNKNOWN[name]


def test_a_cut_tiff_of_many_bands_fails_and_a_whole_one_is_read(tmp_path):
    tifffile = pytest.importorskip('tifffile')
    pixels = np.arange(40 * 50 * 6, dtype=np.uint16).reshape(40, 50, 6)
    path = tmp_path / 'bands.tif'
    tifffile.imwrite(path, pixels, photometric='minisblack', planarconfig='contig')
    load = LoadImageFromFile(
        color_type='unchanged', imdecode_backend='tifffile', backend_args=dict(backend='whole')
    )
    assert np.array_equal(load(dict(img_path=str(path)))['img'], pixels)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match='failed to read'):
        load(dict(img_path=str(path)))


def test_files_of_known_formats_must_be_whole_whatever_their_names_are(tmp_path):
    Image.new('L', (40, 30)).save(tmp_path / 'a.png')
    cut = (tmp_path / 'a.png').read_bytes()[:20]
    for name, content in (
        ('text.jpg', b'not an image'),
        ('empty.tif', b''),
        ('a.png.part', cut),
        ('a.tif', cut),
    ):
        (tmp_path / name).write_bytes(content)
        message = rf'{name} is not a complete image \({len(content)} bytes\); copy or download it'
        with pytest.raises(DamagedImageError, match=message):
            fileio.get(tmp_path / name, backend_args=dict(backend='whole'))
        with pytest.raises(DamagedImageError, match=f'{name} is not a complete image; copy'):
            check_image(tmp_path / name, name)  # by its header alone


@pytest.mark.parametrize('model', ['laplacianformer', 'mask-rcnn', 'upernet'])
def test_a_file_that_cannot_be_read_is_named(model, mini_data, tmp_path):
    cfg, name = Config.fromfile(micro_config(model)), MICRO[model].partition('/')[0]
    toolbox = cfg.default_scope
    kind = 'seg_map' if toolbox == 'mmseg' else 'img'
    shutil.copytree(mini_data / name, tmp_path / name)
    dataset_cfg = dict(cfg.train_dataloader.dataset, data_root=str(tmp_path / name))
    with DefaultScope.overwrite_default_scope(toolbox):
        import_module(f'{toolbox}.utils').register_all_modules(init_default_scope=False)
        dataset = DATASETS.build(dataset_cfg)
    paths = [Path(dataset.get_data_info(i)[f'{kind}_path']) for i in range(3)]
    whole = paths[0].read_bytes()
    damages = (b'', whole[: len(whole) // 2], b'<html>404</html>')
    for i, (path, content) in enumerate(zip(paths, damages)):
        path.write_bytes(content)
        with pytest.raises((OSError, AssertionError), match=str(path)):
            dataset[i]
