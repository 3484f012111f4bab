# The common recipe of UPerNet on pyramid transformers. For the rate SOFT++ prints 6e-4, PolaFormer
# 2e-4 (with weight decay 1e-3), for ADE20K; 6e-5 is our choice.
_base_ = ['./iterations.py', '../../../_base_/no_decay.py']

max_iters = 160000
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

# 6e-5 is for 8 GPUs x 2 images; another batch takes 6e-5 x images / 16.
auto_scale_lr = dict(enable=False, base_batch_size=16)
