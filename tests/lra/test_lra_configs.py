"""Every config of Long Range Arena builds, learns, and has the settings that it says it has."""

import copy
import functools
import re
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, fast_with, load_tool, quiet_init, toolbox_config, toolbox_model
from mmengine.dataset import Compose
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import DATASETS, DefaultScope
from mmengine.runner import Runner

from mmlaplace.lra import BetaCycleHook, SequenceDataset
from mmlaplace.lra.storage import write_split

CONFIGS = ROOT / 'configs/lra'
LEAVES = {
    path.stem: path for path in sorted(CONFIGS.glob('*/*.py')) if path.parent.name != '_base_'
}
TASKS = ('listops', 'text', 'retrieval', 'image', 'pathfinder')
CLASSES = dict(listops=10, text=2, retrieval=2, image=10, pathfinder=2)
LENGTHS = dict(listops=2048, text=4096, retrieval=4096, image=1024, pathfinder=1024)
OURS = ('softmax', 'soft', 'softpp', 'laplacian', 'pola', 'linformer', 'nystromformer', 'performer',
        'linear')  # fmt: skip
MINI = ('softmax', 'softpp', 'laplacian', 'pola', 'linear')
TABLE_12 = ('softmax', 'reformer', 'linformer', 'performer', 'nystromformer', 'soft', 'softpp')
TABLE_4 = ('softmax', 'linformer', 'kernelized', 'cosformer', 'nystromformer', 'skyformer',
           'hedgehog', 'pola-a3', 'pola-a5', 'pola-a7')  # fmt: skip
# Batch, learning rate, warm-up, iterations, validation interval, rows of the embedding.
PROTOCOLS = {
    'softpp': dict(  # Nyströmformer's LRA/code
        listops=(32, 1e-4, 1000, 5_000, 50, 32),
        text=(32, 1e-4, 8000, 20_000, 500, 512),
        retrieval=(32, 1e-4, 800, 30_000, 300, 512),
        image=(256, 1e-4, 175, 35_000, 175, 512),
    ),
    'polaformer': dict(  # Skyformer's config.py, with PolaFormer's learning rate for Pathfinder
        listops=(32, 1e-4, 1000, 50_000, 500, 32),
        text=(32, 1e-4, 80, 50_000, 500, 512),
        retrieval=(16, 2e-4, 800, 50_000, 1000, 512),
        image=(256, 1e-4, 175, 50_000, 50, 256),
        pathfinder=(128, 5e-4, 312, 50_000, 500, 512),
    ),
}
ALL = fast_with(LEAVES, 'listops_pola', 'retrieval_softpp_as-softpp', 'listops_mini_softmax')


@functools.cache
def parse(name):
    return toolbox_config(LEAVES[name])


def expected_names() -> set:
    names = {f'{task}_{kind}' for task in TASKS for kind in OURS}
    names |= {f'{task}_mini_{kind}' for task in ('listops', 'pathfinder') for kind in MINI}
    names |= {f'{t}_{k}_as-softpp' for t in PROTOCOLS['softpp'] for k in TABLE_12}
    return names | {f'{t}_{k}_as-polaformer' for t in TASKS for k in TABLE_4}


def test_each_task_has_each_attention_and_each_row_of_the_tables():
    assert set(LEAVES) == expected_names()
    assert all(path.parent.name == name.split('_')[0] for name, path in LEAVES.items())


@pytest.mark.parametrize('name', ALL)
def test_config_is_thin_and_agrees_with_its_task_and_itself(name):
    cfg, task = parse(name), name.split('_')[0]
    assert len(LEAVES[name].read_text().splitlines()) <= 40
    assert cfg.custom_imports.imports == ['mmlaplace']
    encoder, head = cfg.model.backbone, cfg.model.head
    if '_mini_' not in name:
        assert encoder.max_length == LENGTHS[task]
    assert head.num_classes == CLASSES[task]
    assert head.in_channels == (256 if task == 'retrieval' else 64)
    rate, steps = cfg.optim_wrapper.optimizer.lr, cfg.train_cfg.max_iters
    assert (cfg.param_scheduler.eta_max, cfg.param_scheduler.total_steps) == (rate, steps)
    assert cfg.max_iters == steps
    assert cfg.auto_scale_lr.base_batch_size == cfg.train_dataloader.batch_size
    published = '_as-' in name
    assert encoder.get('pool', 'mean') == ('padded_mean' if published else 'mean')
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        data = loader.dataset
        assert issubclass(DATASETS.get(data.type), SequenceDataset)
        assert data.data_root.split('/')[-1] == (f'{task}_mini' if '_mini_' in name else task)
        if task == 'listops':
            largest = 15
            assert data.get('brackets', True) != published
        else:
            black = data.get('black_is_padding', False)
            largest = 255 if black else 256
            if task in ('image', 'pathfinder') and '_mini_' not in name:
                assert black == published
        assert largest < encoder.num_embeddings
        assert data.get('max_length', 0) <= encoder.max_length
    assert cfg.test_dataloader.dataset.split == 'test'


@pytest.mark.parametrize(
    'name',
    fast_with(
        [n for n in LEAVES if '_as-' in n], 'text_pola-a3_as-polaformer', 'image_soft_as-softpp',
        'text_kernelized_as-polaformer', 'image_softmax_as-softpp',
    ),
)  # fmt: skip
def test_published_settings_are_those_of_the_code_that_the_table_comes_from(name):
    task, attention, table = re.fullmatch(r'(\w+?)_([\w-]+)_as-(\w+)', name).groups()
    batch, rate, warm_up, steps, interval, rows = PROTOCOLS[table][task]
    cfg = parse(name)
    assert cfg.train_dataloader.batch_size == cfg.val_dataloader.batch_size == batch
    assert cfg.optim_wrapper.optimizer.lr == rate
    assert cfg.param_scheduler.pct_start == warm_up / steps
    (hook,) = cfg.custom_hooks
    assert (hook.type, hook.pct_start) == ('BetaCycleHook', warm_up / steps)
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == (steps, interval)
    assert cfg.model.backbone.num_embeddings == rows
    clip = None if table == 'softpp' else dict(type='value', clip_value=1.0)
    assert cfg.optim_wrapper.clip_grad == clip
    # Of the code's attentions, these two alone drop weights.
    dropping = 0.1 if attention in ('softmax', 'kernelized') else None
    assert cfg.model.backbone.attn_cfg.get('attn_drop') == dropping
    if task == 'text':
        assert cfg.val_dataloader.dataset.split == 'test'
        assert not any(cfg[f'{k}_dataloader'].dataset.get('indices') for k in ('train', 'val'))
    if attention.startswith('pola-a'):
        assert cfg.model.backbone.attn_cfg.alpha == int(attention[-1])
    if attention.startswith('soft') and attention != 'softmax':
        attn_cfg = cfg.model.backbone.attn_cfg
        assert (attn_cfg.landmark_method, attn_cfg.pool_ratio) == ('pool', 4)
        assert attn_cfg.get('normalized', True) == (attention == 'softpp')


def batch_of(cfg, samples=3) -> dict:
    """Stand-ins for a batch: ids of different lengths, as the pipeline packs them."""
    rows = 2 if cfg.model.head.in_channels == 256 else 1
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        pipeline = Compose(cfg.train_dataloader.dataset.pipeline)
        packed = [
            pipeline(dict(img=torch.randint(1, 12, (rows, length)).numpy(), gt_label=length % 2))
            for length in range(20, 20 + samples)
        ]
    return {key: [sample[key] for sample in packed] for key in packed[0]}


@pytest.mark.parametrize('name', ALL)
def test_one_training_step_changes_the_weights(name):
    cfg = parse(name)
    model = toolbox_model(cfg)
    quiet_init(model)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        optim_wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    losses = model.train().train_step(batch_of(cfg), optim_wrapper)
    assert torch.isfinite(losses['loss'])
    changed = {key for key, value in model.named_parameters() if not value.equal(before[key])}
    assert {'backbone.embedding.weight', 'head.layers.1.fc.weight'} <= changed
    predicted = model.eval().val_step(batch_of(cfg))
    assert all(sample.pred_score.shape == (cfg.model.head.num_classes,) for sample in predicted)


@pytest.mark.parametrize('pct_start', [0.2, 1000 / 5000])
def test_beta_goes_as_pytorchs_own_schedule_has_it(pct_start):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1e-4, total_steps=50, pct_start=pct_start, anneal_strategy='linear'
    )
    hook, other = BetaCycleHook(pct_start), torch.optim.AdamW([parameter])
    wrapper = OptimWrapper(other)
    for step in range(50):
        hook.before_train_iter(SimpleNamespace(iter=step, max_iters=50, optim_wrapper=wrapper), 0)
        # A few roundings of doubles near 1.
        assert other.param_groups[0]['betas'][0] == pytest.approx(
            optimizer.param_groups[0]['betas'][0], abs=1e-14
        )
        optimizer.step()
        if step < 49:  # it refuses more steps than it was made for
            schedule.step()


@pytest.mark.parametrize('options', [dict(pct_start=1.5), dict(pct_start=0.1, lowest=0.99)])
def test_a_cycle_out_of_range_is_refused(options):
    with pytest.raises(ValueError, match=f'{list(options)[-1]} .{list(options.values())[-1]}'):
        BetaCycleHook(**options)


@pytest.mark.training
@pytest.mark.parametrize(
    'name', ['listops_softmax_as-softpp', 'listops_mini_softmax', 'retrieval_pola']
)
def test_the_runner_trains_validates_and_saves_the_best(name, tmp_path):
    cfg = copy.deepcopy(parse(name))
    cfg.work_dir = str(tmp_path / 'run')
    root = tmp_path / 'data'
    tool = load_tool('tools/dataset_converters/make_lra_datasets.py')
    counts = dict(train=24, val=8, test=8)
    if name.startswith('listops'):
        tool.make_listops(root, 0, tool.SETTINGS['listops', 'mini'], counts, 1)
    else:
        for split, count in counts.items():
            texts = [torch.randint(256, (n,)).numpy() for n in range(5, 5 + 2 * count)]
            pairs = torch.arange(2 * count).view(-1, 2).numpy()
            write_split(root / split, texts, [i % 2 for i in range(count)], pairs)
    for key in ('train', 'val', 'test'):
        loader = cfg[f'{key}_dataloader']
        loader.update(num_workers=0, persistent_workers=False, batch_size=8)
        loader.dataset.data_root = str(root)
    cfg.train_cfg.update(max_iters=4, val_interval=2)
    cfg.param_scheduler.update(total_steps=4, pct_start=0.5)
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert list((tmp_path / 'run').glob('best_accuracy_top1_iter_*.pth'))
    assert 'accuracy/top1' in runner.test()
