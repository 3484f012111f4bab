"""A dry run takes a config's own pipelines and evaluators, and says what fails."""

import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT, load_tool, output_of
from mmengine.config import Config

TOOL = ROOT / 'tools/dry_run.py'
# With the channels of the smallest backbone, and few in the heads.
CONFIGS = {
    'segmentation/polaformer/polaformer-pvt-tiny_fpn_8xb4-40k_ade20k-512x512.py': dict(
        neck=dict(in_channels=[32, 64, 96, 128], out_channels=32),
        decode_head=dict(in_channels=[32] * 4, channels=32),
    ),
    'detection/laplacianformer/retinanet_laplacianformer-tiny_fpn_1x_coco.py': dict(
        neck=dict(in_channels=[64, 96, 128], out_channels=32),
        bbox_head=dict(in_channels=32, feat_channels=32),
    ),
    'classification/laplacianformer/laplacianformer-tiny_8xb128_in1k.py': dict(
        head=dict(in_channels=128)
    ),
}


@pytest.fixture(scope='module')
def stand_ins(tmp_path_factory):
    pytest.importorskip('mmdet')
    out = tmp_path_factory.mktemp('stand_in') / 'data'
    tool = ROOT / 'tools/dataset_converters/make_stand_in_datasets.py'
    subprocess.run([sys.executable, tool, '--out', out], check=True, capture_output=True)
    return out


def row_of(config, folder, *options, backbone=(), **model) -> dict:
    """What is written of a config with the smallest backbone."""
    model['backbone'] = dict(backbone, arch='micro')
    text = f'_base_ = {str(ROOT / "configs" / config)!r}\nmodel = {model!r}\n'
    (folder / 'micro.py').write_text(text)
    output_of(TOOL, folder / 'micro.py', *options, '--work-dir', folder / 'runs')
    (row,) = json.loads((folder / 'runs/results.json').read_text()).values()
    assert row['passed'] and row['loss'] > 0
    return row


@pytest.mark.training
@pytest.mark.thorough
@pytest.mark.parametrize('config', CONFIGS, ids=lambda config: config.split('/')[-1])
def test_a_config_of_each_task_runs(stand_ins, tmp_path, config):
    row = row_of(config, tmp_path, '--data-root', stand_ins, **CONFIGS[config])
    assert row['metrics']


def test_only_a_config_with_their_data_asks_for_stand_ins(tmp_path, capsys, monkeypatch):
    """A config of the user's own data runs on these, again if it is to have another batch."""
    tool, ran = load_tool('tools/dry_run.py'), []

    def run(config, mark, data, work_dir, length, options):
        ran.append((config.stem, length['batch_size']))
        row = dict(config=tool.name_of(config), fingerprint=mark, passed=True, **length)
        return dict(row, seconds=1, MB=1, loss=1, metrics={})

    def call(name, *options) -> None:
        words = [tmp_path / f'{name}.py', '--data-root', tmp_path / 'none', '--work-dir', tmp_path]
        monkeypatch.setattr('sys.argv', ['dry_run.py', *map(str, (*words, *options))])
        tool.main()

    monkeypatch.setattr(tool, 'run', run)
    monkeypatch.setattr(tool, 'import_first', lambda *names: None)
    base = str(ROOT / 'configs' / [*CONFIGS][2])
    own = dict(dataset=dict(data_root='data/my_cats'))
    loaders = ''.join(f'{split}_dataloader = {own}\n' for split in ('train', 'val', 'test'))
    for name, text in dict(imagenet='', mine=loaders).items():
        (tmp_path / f'{name}.py').write_text(f'_base_ = {base!r}\n{text}')
    with pytest.raises(SystemExit):
        call('imagenet')
    assert 'make_stand_in_datasets.py' in capsys.readouterr().err
    for batch in (2, 2, 4):
        call('mine', '--batch-size', batch)
    assert ran == [('mine', 2), ('mine', 4)]


def test_all_configs_are_found_and_keep_their_pipelines(tmp_path):
    tool, configs = load_tool('tools/dry_run.py'), ROOT / 'configs'
    found = {path for task in tool.TASKS for path in tool.full_size_configs(task)}
    leaves = {path for task in tool.TASKS for path in (configs / task).glob('[!_]*/*.py')}
    assert found == {path for path in leaves if not re.search('mini|fashion', path.stem)}
    assert len(found) > 90
    cfg = Config.fromfile(configs / [*CONFIGS][0])
    short = tool.shorten(cfg, tmp_path, tmp_path)
    assert short.train_dataloader.dataset.pipeline == cfg.train_dataloader.dataset.pipeline
    assert short.optim_wrapper == cfg.optim_wrapper and short.train_cfg.max_iters == 2
    one_a_gpu = configs / 'segmentation/mavit/mavit-large_upernet_8xb1-160k_ade20k-512x512.py'
    short = tool.shorten(Config.fromfile(one_a_gpu), tmp_path, tmp_path)
    assert short.train_dataloader.batch_size == 2
    path = configs / 'detection/swin/mask-rcnn_swin-tiny_fpn_ms-1x_coco.py'
    assert tool.shorten(Config.fromfile(path), tmp_path, tmp_path).model.backbone.init_cfg is None


@pytest.mark.parametrize(
    ('words', 'shape'),
    [
        (['--random-images', '--image-size', '64', '96'], (64, 96)),
        (['--random-images', '64', '96'], (64, 96)),  # as the size was given before
        (['--random-images'], (48, 48)),  # the config's
    ],
)
def test_random_images_have_the_size_that_is_asked_for(words, shape, tmp_path, monkeypatch):
    tool, seen = load_tool('tools/dry_run.py'), []
    micro = ROOT / 'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
    call = [str(micro), *words, '--here', '--work-dir', str(tmp_path)]
    monkeypatch.setattr('sys.argv', ['dry_run.py', *call])
    monkeypatch.setattr(tool, 'train_and_predict', lambda *args: seen.append(args[1:]) or {})
    tool.main()
    assert seen == [(shape, 2)]


@pytest.mark.slow
def test_random_images_need_no_data_and_no_weights(tmp_path):
    weights = dict(type='Pretrained', checkpoint='mmlaplace://ravlt-tiny')
    size = ('--random-images', '--image-size', 64, 96)
    config, options = [*CONFIGS][2], (*size, '--data-root', tmp_path / 'none')
    row = row_of(config, tmp_path, *options, backbone=dict(init_cfg=weights), **CONFIGS[config])
    assert row['random_images'] and row['image_size'] == [64, 96]
