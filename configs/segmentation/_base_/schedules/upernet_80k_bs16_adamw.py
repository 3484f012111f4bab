# As upernet_160k_bs16_adamw.py, for half of the iterations: the recipe of XCiT for Semantic FPN.
_base_ = ['./iterations.py', '../../../_base_/no_decay.py']

max_iters = 80000
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, weight_decay=0.01, betas=(0.9, 0.999)),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters // 10)
default_hooks = dict(checkpoint=dict(interval=max_iters // 10))

# 8 GPUs x 2 images
auto_scale_lr = dict(enable=False, base_batch_size=16)
