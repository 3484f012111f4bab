# As 1x_bs16_adamw.py, for three times as long.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 36
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.01, betas=(0.9, 0.999)),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', milestones=[27, 33], by_epoch=True, begin=0, end=max_epochs),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

# 1e-4 is for 8 GPUs x 2 images; another batch takes 1e-4 x images / 16.
auto_scale_lr = dict(enable=False, base_batch_size=16)
