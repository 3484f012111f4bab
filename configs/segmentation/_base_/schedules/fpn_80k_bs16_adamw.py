# The recipe of PVT for Semantic FPN, but not everything decays.
_base_ = ['./iterations.py', '../../../_base_/no_decay.py']

max_iters = 80000
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4, betas=(0.9, 0.999)),
)
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=0, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters // 10)
default_hooks = dict(checkpoint=dict(interval=max_iters // 10))

# 1e-4 is for 8 GPUs x 2 images; another batch takes 1e-4 x images / 16.
auto_scale_lr = dict(enable=False, base_batch_size=16)
