# The recipe of PoolFormer: as many images as in 80k iterations of 16.
_base_ = ['./iterations.py', '../../../_base_/no_decay.py']

max_iters = 40000
optim_wrapper = dict(
    type='OptimWrapper',
    # 1e-4 x 32 / 16
    optimizer=dict(type='AdamW', lr=2e-4, weight_decay=1e-4, betas=(0.9, 0.999)),
)
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=0, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters // 10)
default_hooks = dict(checkpoint=dict(interval=max_iters // 10))

# 8 GPUs x 4 images
auto_scale_lr = dict(enable=False, base_batch_size=32)
