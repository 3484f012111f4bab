# The recipe of MobileViTv2 for ADE20K: 120 epochs of 1,264 steps.
_base_ = ['./iterations.py', '../../../_base_/no_decay.py']

max_iters = 152000
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=1e-4),
    clip_grad=dict(max_norm=10.0),
)
param_scheduler = [
    dict(type='CosineAnnealingLR', eta_min=2e-4, by_epoch=False, begin=0, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters // 10)
default_hooks = dict(checkpoint=dict(interval=max_iters // 10))

# 4 GPUs x 4 images
auto_scale_lr = dict(enable=False, base_batch_size=16)
