# SOFT's recipe for ImageNet: 300 epochs of AdamW, linear warm-up over 10, cosine to 5e-5,
# which SOFT's code has for any rate and number of images.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 300
warmup_epochs = 10
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, betas=(0.9, 0.999), eps=1e-8),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        end=warmup_epochs,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min=5e-5,
        by_epoch=True,
        begin=warmup_epochs,
        end=max_epochs,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=5)
val_cfg = dict()
test_cfg = dict()

# Statistics of BatchNorm are averaged too, as in the authors' code.
custom_hooks = [
    dict(type='EMAHook', momentum=1 - 0.99996, update_buffers=True, priority='ABOVE_NORMAL'),
]
# 8 GPUs x 128 images
auto_scale_lr = dict(base_batch_size=1024)
