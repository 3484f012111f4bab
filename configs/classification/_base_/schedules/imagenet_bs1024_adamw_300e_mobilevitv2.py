# MobileViTv2's recipe for ImageNet, for 1024 images: 300 epochs, warm-up over 20,000 iterations,
# cosine to a tenth, gradients of up to 10. The rate and the decay are those of the width 2.0.
# Smaller widths have larger rates and less decay.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 300
warmup_epochs = 16
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.05, betas=(0.9, 0.999), eps=1e-8),
    clip_grad=dict(max_norm=10.0),
)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=5e-4,
        by_epoch=True,
        end=warmup_epochs,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min_ratio=0.1,
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
    dict(type='EMAHook', momentum=5e-4, update_buffers=True, priority='ABOVE_NORMAL'),
]
# 8 GPUs x 128 images
auto_scale_lr = dict(base_batch_size=1024)
