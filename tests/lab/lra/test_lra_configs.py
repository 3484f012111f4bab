"""Every config of Long Range Arena agrees with its task, builds and learns."""

import copy
import functools
import os
import re
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from conftest import ROOT, fast_with, load_tool, quiet_init, toolbox_config, toolbox_model
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import DefaultScope
from mmengine.runner import Runner

from mmlaplace.lab.lra import BetaCycleHook
from mmlaplace.lab.lra.attentions import ATTENTIONS

CONFIGS = ROOT / 'configs/lra'
FILES = sorted(CONFIGS.glob('*.py'))
SETTINGS = {'mini': 'mini', 'as-polaformer': 'polaformer', 'as-softpp': 'softpp'}
# By file and attention.
LEAVES = {
    f'{path.stem} {attention}': (path, attention)
    for path in FILES
    for attention in ATTENTIONS[SETTINGS.get(path.stem.partition('_')[2], 'own')]
}
CLASSES = dict(listops=10, text=2, retrieval=2, image=10, pathfinder=2)
ALL = fast_with(LEAVES, 'listops pola', 'retrieval_as-softpp softpp', 'listops_mini softmax')


@functools.cache
def parse(name):
    path, attention = LEAVES[name]
    with mock.patch.dict(os.environ, ATTENTION=attention):
        return toolbox_config(path)


@pytest.mark.slow
def test_a_task_has_a_file_for_each_setting_and_each_attention_is_one_config():
    assert len(FILES) == 16 and len(LEAVES) == 133
    one_task = {name: leaf for name, leaf in LEAVES.items() if name.startswith('listops')}
    for name, (path, attention) in one_task.items():
        setting = SETTINGS.get(path.stem.partition('_')[2], 'own')
        assert parse(name).model.backbone.attn_cfg == ATTENTIONS[setting][attention], name
    folders = {parse(name).work_dir for name in one_task}
    assert len(folders) == len(one_task)  # a training does not go on with another's checkpoint


def test_a_run_has_a_folder_of_its_attention():
    assert parse('text_as-polaformer pola-a5').work_dir == 'work_dirs/text_pola-a5_as-polaformer'
    assert parse('listops_mini softmax').work_dir == 'work_dirs/listops_mini_softmax'
    assert parse('listops_mini softmax').model.backbone.padding == 'mask'


def test_without_a_name_there_is_an_attention_and_a_wrong_name_is_one_sentence(monkeypatch):
    monkeypatch.delenv('ATTENTION', raising=False)
    kinds = [Config.fromfile(path).model.backbone.attn_cfg.type for path in FILES]
    assert set(kinds) == {'PolaAttention', 'SOFTAttention'}
    monkeypatch.setenv('ATTENTION', 'pola-a4')
    with pytest.raises(
        ValueError, match="ATTENTION='pola-a4' is none .*did you mean 'pola-a7'.*; it has cos"
    ):
        Config.fromfile(CONFIGS / 'text_as-polaformer.py')


@pytest.mark.parametrize('name', ALL)
def test_config_agrees_with_its_task_and_itself(name):
    cfg, task = parse(name), re.match('[a-z]+', name)[0]
    encoder, head = cfg.model.backbone, cfg.model.head
    assert head.num_classes == CLASSES[task]
    assert head.in_channels == (256 if task == 'retrieval' else 64)
    rate, steps = cfg.optim_wrapper.optimizer.lr, cfg.train_cfg.max_iters
    assert (cfg.param_scheduler.eta_max, cfg.param_scheduler.total_steps) == (rate, steps)
    assert cfg.auto_scale_lr.base_batch_size == cfg.train_dataloader.batch_size
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        data = loader.dataset
        assert data.data_root.split('/')[-1] == (f'{task}_mini' if '_mini' in name else task)
        largest = 255 if data.get('black_is_padding') else 256
        assert (15 if task == 'listops' else largest) < encoder.num_embeddings
        assert data.get('max_length', 0) <= encoder.max_length
    assert cfg.test_dataloader.dataset.split == 'test'


def batch_of(cfg) -> dict:
    """Stand-ins for a batch: ids of different lengths, as the pipeline packs them."""
    rows = 2 if cfg.model.head.in_channels == 256 else 1
    pipeline = Compose(cfg.train_dataloader.dataset.pipeline)
    packed = [
        pipeline(dict(img=torch.randint(1, 12, (rows, n)).numpy(), gt_label=n % 2))
        for n in (20, 21, 22)
    ]
    return {key: [sample[key] for sample in packed] for key in packed[0]}


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', ALL)
def test_one_training_step_changes_the_weights(name):
    cfg = parse(name)
    model = toolbox_model(cfg)
    quiet_init(model)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        optim_wrapper, batch = build_optim_wrapper(model, cfg.optim_wrapper), batch_of(cfg)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    losses = model.train().train_step(batch, optim_wrapper)
    changed = {key for key, value in model.named_parameters() if not value.equal(before[key])}
    assert torch.isfinite(losses['loss'])
    assert {'backbone.embedding.weight', 'head.layers.1.fc.weight'} <= changed


def test_beta_goes_as_pytorchs_own_schedule_has_it():
    optimizer, other = (torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))]) for _ in range(2))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-4, total_steps=50, pct_start=0.2, anneal_strategy='linear'
    )
    hook, wrapper = BetaCycleHook(0.2), OptimWrapper(other)
    for step in range(50):
        hook.before_train_iter(SimpleNamespace(iter=step, max_iters=50, optim_wrapper=wrapper), 0)
        found, expected = (each.param_groups[0]['betas'][0] for each in (other, optimizer))
        assert found == pytest.approx(expected, abs=1e-14)  # a few roundings of doubles near 1
        optimizer.step()
        if step < 49:  # it refuses more steps than it was made for
            schedule.step()


@pytest.mark.training
def test_the_runner_trains_validates_and_saves_the_best(tmp_path):
    cfg, root = copy.deepcopy(parse('listops_mini softmax')), tmp_path / 'data'
    tool = load_tool('tools/dataset_converters/make_lra_datasets.py')
    counts = dict(train=24, val=8, test=8)
    tool.make_listops(root, 0, tool.SETTINGS['listops', 'mini'], counts, 1)
    for key in counts:
        loader = cfg[f'{key}_dataloader']
        loader.update(num_workers=0, persistent_workers=False, batch_size=8)
        loader.dataset.data_root = str(root)
    cfg.work_dir = str(tmp_path / 'run')
    cfg.train_cfg.update(max_iters=4, val_interval=2)
    cfg.param_scheduler.update(total_steps=4, pct_start=0.5)
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert list((tmp_path / 'run').glob('best_accuracy_top1_iter_*.pth'))
    assert 'accuracy/top1' in runner.test()
