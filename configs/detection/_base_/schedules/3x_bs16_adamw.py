_base_ = './1x_bs16_adamw.py'

max_epochs = 36
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', milestones=[27, 33], by_epoch=True, begin=0, end=max_epochs),
]
train_cfg = dict(max_epochs=max_epochs)
