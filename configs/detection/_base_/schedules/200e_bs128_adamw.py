# The recipe of MobileViTv2's SSD: all weights decay.
max_epochs = 200
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=9e-4, betas=(0.9, 0.999), weight_decay=0.05),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=500),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-6,
        begin=0,
        end=max_epochs,
        T_max=max_epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=5)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

# 4 GPUs x 32 images
auto_scale_lr = dict(enable=False, base_batch_size=128)
