# After ConvNeXt's recipe for fine-tuning at 384 x 384: 30 epochs at a low rate, lower in earlier
# layers.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 30
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=5e-5, weight_decay=1e-8, betas=(0.9, 0.999), eps=1e-8),
    constructor='LayerDecayOptimWrapperConstructor',
    # A block has 0.9 of the rate of the one behind it, over 20 to 38 blocks; ConvNeXt's 0.8 is for
    # 12 groups of them.
    paramwise_cfg=dict(layer_decay_rate=0.9),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    # To 1e-6 in the head. As a ratio: an absolute minimum would raise the rate of the first layers.
    dict(
        type='CosineAnnealingLR',
        eta_min_ratio=0.02,
        by_epoch=True,
        begin=0,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()

# 5e-5 is for 8 GPUs x 64 images; another batch takes 5e-5 x images / 512.
auto_scale_lr = dict(base_batch_size=512)
