"""Models train in half precision; tests/test_commands.py runs the toolboxes' own scripts."""

from importlib import import_module

import pytest
import torch
from conftest import CLASSIFICATION, ROOT, needs_torch, quiet_init
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope

MINI = CLASSIFICATION / 'laplacianformer/laplacianformer-micro_1xb32_mini.py'


def build_mini(mini_data, stride):
    """The mini model and every ``stride``-th of the held-out images, preprocessed."""
    cfg = Config.fromfile(MINI)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        import mmpretrain.datasets
        import mmpretrain.models  # noqa: F401  (registers)
        from mmpretrain.registry import DATASETS, MODELS

        cfg.val_dataloader.dataset.data_root = str(mini_data / 'classification')
        dataset = DATASETS.build(cfg.val_dataloader.dataset)
        model = MODELS.build(dict(cfg.model, data_preprocessor=cfg.data_preprocessor))
    batch = pseudo_collate([dataset[i] for i in range(0, len(dataset), stride)])
    return model, model.data_preprocessor(batch, training=True)


@pytest.mark.training
@needs_torch(2, 3)  # loss scaling on a CPU
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_eighty_steps_of_mixed_precision_stay_finite(dtype, mini_data):
    model, data = build_mini(mini_data, 120)
    optimizer, skipped = torch.optim.AdamW(model.parameters(), lr=1e-3), 0
    scaler = torch.amp.GradScaler('cpu', enabled=dtype == torch.float16)
    for _ in range(80):
        optimizer.zero_grad()
        with torch.autocast('cpu', dtype=dtype):
            loss = model(**data, mode='loss')['loss']
        assert loss.isfinite()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        skipped += not all(p.grad.isfinite().all() for p in model.parameters())
        scaler.step(optimizer)
        scaler.update()
        assert all(p.isfinite().all() for p in model.parameters())
    # The scaler starts at 65,536 and halves it until no gradient overflows.
    assert skipped <= (8 if dtype == torch.float16 else 0)
    assert loss < 1  # 2.3 at the start; label smoothing leaves 0.5


DENSE = {
    'mmdet': 'detection/laplacianformer/mask-rcnn_laplacianformer-micro_fpn_mini.py',
    'mmseg': 'segmentation/laplacianformer/laplacianformer-micro_upernet_1xb16_mini.py',
}


@pytest.mark.training
@pytest.mark.parametrize('toolbox', DENSE)
def test_thirty_bf16_steps_of_dense_models_stay_finite(toolbox, mini_data, monkeypatch):
    """From random weights. mmengine's AmpOptimWrapper does the same on GPUs and refuses CPUs."""
    cfg = Config.fromfile(ROOT / 'configs' / DENSE[toolbox])
    cfg.model.backbone.init_cfg = None
    if toolbox == 'mmdet':  # mmcv's own RoIAlign and NMS know no bf16 on a CPU
        ops = import_module('mmcv.ops.nms').ext_module
        monkeypatch.setattr(ops, 'nms', lambda *boxes, nms=ops.nms, **options: nms(
            *(tensor.float() for tensor in boxes), **options
        ))  # fmt: skip
        for extractor in ('bbox_roi_extractor', 'mask_roi_extractor'):
            cfg.model.roi_head[extractor].roi_layer.use_torchvision = True
    data_root = str(mini_data / DENSE[toolbox].partition('/')[0])
    dataset_cfg = dict(cfg.train_dataloader.dataset, indices=8, data_root=data_root)
    with DefaultScope.overwrite_default_scope(toolbox):
        import_module(f'{toolbox}.utils').register_all_modules(init_default_scope=False)
        dataset, model = DATASETS.build(dataset_cfg), MODELS.build(cfg.model)
        quiet_init(model)
        optim_wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    model.train()
    batch_size = 1 if toolbox == 'mmdet' else 2  # which BatchNorm needs
    first = last = None
    for step in range(30):
        batch = pseudo_collate([dataset[(step + i) % len(dataset)] for i in range(batch_size)])
        data = model.data_preprocessor(batch, training=True)
        with torch.autocast('cpu', dtype=torch.bfloat16):
            losses = model(**data, mode='loss')
        loss, log_vars = model.parse_losses(losses)
        assert all(torch.isfinite(torch.as_tensor(value)) for value in log_vars.values()), log_vars
        optim_wrapper.update_params(loss)
        first, last = first or loss.item(), loss.item()
    assert last < first
