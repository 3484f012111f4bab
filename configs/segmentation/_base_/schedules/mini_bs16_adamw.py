# Short enough for two CPU cores.
_base_ = ['./iterations.py', '../../../_base_/no_decay.py']

max_iters = 400
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.05, by_epoch=False, begin=0, end=40),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=40, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters // 2)
default_hooks = dict(logger=dict(interval=25), checkpoint=dict(interval=max_iters // 2))

auto_scale_lr = dict(enable=False, base_batch_size=16)
