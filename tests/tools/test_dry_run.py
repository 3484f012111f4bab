"""A dry run takes a config's own pipelines and evaluators, and says what fails."""

import json
import subprocess
import sys
from functools import partial

import pytest
from conftest import ROOT, load_tool, run_script
from mmengine.config import Config

TOOL = ROOT / 'tools/dry_run.py'
CONFIGS = [
    'classification/laplacianformer/laplacianformer-tiny_8xb128_in1k.py',
    'detection/soft/mask-rcnn_softpp-tiny_fpn_1x_coco.py',
    'segmentation/polaformer/polaformer-pvt-tiny_fpn_8xb4-40k_ade20k-512x512.py',
]
MICRO = [32, 64, 96, 128]  # channels of its maps
NARROW = 32  # channels of necks and heads, which have 256 or 512 and take most of the time


@pytest.fixture(scope='module')
def stand_ins(tmp_path_factory):
    pytest.importorskip('mmdet')
    out = tmp_path_factory.mktemp('stand_in') / 'data'
    tool = ROOT / 'tools/dataset_converters/make_stand_in_datasets.py'
    subprocess.run([sys.executable, tool, '--out', out], check=True, capture_output=True)
    return out


def micro(tmp_path, config):
    """The config with the smallest backbone and narrow heads, so that a test takes seconds."""
    path = ROOT / 'configs' / config
    full = Config.fromfile(path).model
    model = dict(backbone=dict(type=full.backbone.type, arch='micro'))
    if 'in_channels' in (full.get('neck') or {}):
        model['neck'] = dict(in_channels=MICRO, out_channels=NARROW)
    if 'rpn_head' in full:
        extractor = dict(out_channels=NARROW)
        model['rpn_head'] = dict(in_channels=NARROW, feat_channels=NARROW)
        model['roi_head'] = dict(
            bbox_roi_extractor=extractor,
            mask_roi_extractor=extractor,
            bbox_head=dict(in_channels=NARROW, fc_out_channels=NARROW),
            mask_head=dict(in_channels=NARROW, conv_out_channels=NARROW),
        )
    elif 'decode_head' in full:
        model['decode_head'] = dict(in_channels=[NARROW] * 4, channels=NARROW)
    else:
        model['head'] = dict(in_channels=MICRO[-1])
    file = tmp_path / f'{path.stem}_micro.py'
    file.write_text(f'_base_ = {str(path)!r}\nmodel = {model!r}\n')
    return file


dry_run = partial(run_script, TOOL)


@pytest.mark.training
@pytest.mark.parametrize('config', CONFIGS, ids=lambda config: config.split('/')[-1])
def test_a_config_of_each_task_runs(stand_ins, tmp_path, config):
    config = micro(tmp_path, config)
    options = ['--data-root', stand_ins, '--work-dir', tmp_path / 'runs']
    result = dry_run(config, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    (row,) = json.loads((tmp_path / 'runs/results.json').read_text()).values()
    assert row['passed'] and row['loss'] > 0 and row['metrics']


@pytest.mark.training
def test_what_fails_is_named_and_what_passed_is_not_repeated(stand_ins, tmp_path):
    good, bad = micro(tmp_path, CONFIGS[0]), tmp_path / 'bad.py'
    bad.write_text(f'_base_ = {str(good)!r}\nmodel = dict(head=dict(in_channels=7))\n')
    options = ['--data-root', stand_ins, '--work-dir', tmp_path / 'runs']
    result = dry_run(good, bad, *options)
    assert result.returncode == 1
    assert '1 of 2 configs failed' in result.stderr
    assert 'RuntimeError' in result.stdout and 'bad.py' in result.stdout
    log = tmp_path / 'runs' / good.stem / 'log.txt'
    before = log.stat().st_mtime
    assert dry_run(good, *options).returncode == 0
    assert log.stat().st_mtime == before


def test_all_configs_are_found_and_keep_their_pipelines(tmp_path):
    tool = load_tool('tools/dry_run.py')
    found = {path for task in tool.TASKS for path in tool.full_size_configs(task)}
    leaves = {
        path for path in (ROOT / 'configs').glob('*/*/*.py')
        if '_base_' not in path.parts and 'mini' not in path.stem and path.parts[-3] in tool.TASKS
    }  # fmt: skip
    assert found == leaves and len(found) > 90
    cfg = Config.fromfile(ROOT / 'configs' / CONFIGS[1])
    short = tool.shorten(cfg, tmp_path, tmp_path)
    assert short.train_dataloader.dataset.pipeline == cfg.train_dataloader.dataset.pipeline
    assert short.train_dataloader.dataset.data_root == f'{tmp_path}/coco/'
    assert short.val_evaluator.ann_file == f'{tmp_path}/coco/annotations/instances_val2017.json'
    assert short.model.test_cfg.rcnn.score_thr == 0
    assert short.optim_wrapper == cfg.optim_wrapper and short.train_cfg.max_iters == 2
