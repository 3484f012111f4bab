# The recipe of PoolFormer: as many images as in 80k iterations of 16.
_base_ = './fpn_80k_bs16_adamw.py'

max_iters = 40000
# 1e-4 x 32 / 16
optim_wrapper = dict(optimizer=dict(lr=2e-4))
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=0, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters // 10)
default_hooks = dict(checkpoint=dict(interval=max_iters // 10))

# 8 GPUs x 4 images
auto_scale_lr = dict(base_batch_size=32)
