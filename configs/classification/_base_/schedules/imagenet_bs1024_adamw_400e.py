# PolaFormer's recipe for ImageNet on PVT, PVTv2 and DeiT: the paper's 400 epochs, with warm-up over
# 20, and what its code has on PVT: cosine to a fiftieth of the rate, no clipping of gradients
# for the small sizes, no averaged weights.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 400
warmup_epochs = 20
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
