# SwiftFormer's recipe for ImageNet: 300 epochs, warm-up over 5, cosine to 1e-5. Its authors clip
# gradients adaptively, for which mmengine has no option. They also average weights, but test the
# last ones.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 300
warmup_epochs = 5
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.025, betas=(0.9, 0.999), eps=1e-8),
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
        eta_min=1e-5,
        by_epoch=True,
        begin=warmup_epochs,
        end=max_epochs,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=5)
val_cfg = dict()
test_cfg = dict()

# 16 GPUs x 128 images
auto_scale_lr = dict(base_batch_size=2048)
