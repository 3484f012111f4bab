# EfficientViT's recipe for ImageNet, for 1024 images: 300 epochs after a warm-up over 20, cosine to
# 0, gradients of up to 2.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 320
warmup_epochs = 20
optim_wrapper = dict(
    # 2.5e-4 for 128 images on each of 8 GPUs
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.1, betas=(0.9, 0.999), eps=1e-8),
    clip_grad=dict(max_norm=2.0),
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
        eta_min=0,
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
    dict(type='EMAHook', momentum=1 - 0.9998, update_buffers=True, priority='ABOVE_NORMAL'),
]
# 8 GPUs x 128 images
auto_scale_lr = dict(base_batch_size=1024)
