# FLatten's, Agent's, InLine's and SLAB's recipe for ImageNet on PVT: 300 epochs, warm-up over 5,
# cosine to a fiftieth of the rate.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 300
warmup_epochs = 5
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, betas=(0.9, 0.999), eps=1e-8),
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
        eta_min_ratio=0.02,
        by_epoch=True,
        begin=warmup_epochs,
        end=max_epochs,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=5)
val_cfg = dict()
test_cfg = dict()

# 8 GPUs x 128 images
auto_scale_lr = dict(base_batch_size=1024)
