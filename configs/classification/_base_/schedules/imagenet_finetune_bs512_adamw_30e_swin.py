# Swin's and FLatten's recipe for fine-tuning at 384 x 384: 30 epochs at a low rate, linear warm-up
# over 5, one rate for all layers.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 30
warmup_epochs = 5
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=2e-5, weight_decay=1e-8, betas=(0.9, 0.999), eps=1e-8),
    clip_grad=dict(max_norm=5.0),
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
        eta_min_ratio=0.01,
        by_epoch=True,
        begin=warmup_epochs,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()

# 2e-5 is for 8 GPUs x 64 images; another batch takes 2e-5 x images / 512.
auto_scale_lr = dict(base_batch_size=512)
