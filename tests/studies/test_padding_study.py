"""The study of padding trains what it says, and its tables have what the log has."""

from pathlib import Path

import pytest
from conftest import load_tool


@pytest.fixture(scope='module')
def study():
    return load_tool('studies/study_padding.py')


def test_the_detectors_differ_by_the_masks_alone(study):
    pytest.importorskip('mmdet.models')
    masked, seen = (
        study.detector('LaplacianFormer', flag, 1, 8, 'weights.pth', Path('data'))
        for flag in (True, False)
    )
    assert masked.model.data_preprocessor.type == 'ValidPartsDetDataPreprocessor'
    scales = masked.train_dataloader.dataset.pipeline[2]['scales']
    assert [tuple(scale) for scale in scales] == [(256, 192), (192, 144), (128, 96)]
    assert masked.val_dataloader.batch_size == 1 and masked.train_cfg.max_epochs == 8
    assert masked.randomness.seed == 1
    assert masked.model.backbone.pop('mask_padding') is True
    assert seen.model.backbone.pop('mask_padding') is False
    assert masked.to_dict() == seen.to_dict()


def test_changes_are_those_of_the_valid_part(study):
    moved = study.changes('LaplacianFormer', 'micro')
    windows = study.changes('Swin', 'micro')
    assert len(moved) == 4 and min(moved) > 0.1 > max(windows) > 0


def run_of(seed, masked, large, small):
    settings = dict(kind='detector', backbone='LaplacianFormer', epochs=8, seed=seed)
    scores = {'AP_256x192': large, 'AP_128x96': small}
    return dict(settings=dict(settings, mask_padding=masked), **scores)


def test_the_table_pairs_the_seeds(study):
    results = [run_of(seed, False, 50.0, 10.0 + seed) for seed in range(3)]
    results += [run_of(seed, True, 51.0, 14.0 + 2 * seed) for seed in (2, 0, 1)]
    lines = study.table_of_detectors(results).splitlines()[2:]
    assert lines == [
        '| `LaplacianFormer` | 8 | 256 × 192 | 50.0 (50.0, 50.0, 50.0) | 51.0 (51.0, 51.0, 51.0)'
        ' | +1.0 ± 0.0 |',
        '| `LaplacianFormer` | 8 | 128 × 96 | 11.0 (10.0, 11.0, 12.0) | 16.0 (14.0, 16.0, 18.0)'
        ' | +5.0 ± 2.5 |',
    ]


def test_seeds_that_were_not_run_are_named(study):
    results = [run_of(0, False, 50.0, 10.0), run_of(0, True, 52.0, 9.0), run_of(1, True, 1.0, 1.0)]
    lines = study.table_of_detectors(results).splitlines()[2:]
    assert lines[0].endswith('| 50.0 (50.0) | 52.0 (52.0) | +2.0 (1 of 3 seeds) |')


def test_backbones_that_move_most_come_first(study):
    results = [
        dict(settings=dict(kind='changes', backbone=name, arch='micro'), changes=changes)
        for name, changes in (('Near', [0.2, 0.01]), ('Far', [0.1, 0.305]))
    ]
    lines = study.table_of_changes(results).splitlines()[2:]
    assert lines == ['| `Far`, micro | 10.0, 30.5 |', '| `Near`, micro | 20.0, 1.0 |']
