# The recipe of MobileViTv2 for VOC 2012: 48 of its 50 epochs of 83 steps.
_base_ = ['./iterations.py', '../../../_base_/no_decay.py']

max_iters = 4000
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=10.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=500),
    dict(type='CosineAnnealingLR', eta_min=1e-6, by_epoch=False, begin=500, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters // 10)
default_hooks = dict(checkpoint=dict(interval=max_iters // 10))

# 4 GPUs x 32 images
auto_scale_lr = dict(enable=False, base_batch_size=128)
