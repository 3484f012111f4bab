# CSWin's and Agent's recipe for fine-tuning CSWin at 384 x 384: 20 epochs of cosine to a tenth of
# the rate, without warm-up, and averaged weights. Their 10 further epochs at the lowest rate are
# left out.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 20
optim_wrapper = dict(
    # 5e-6 for 256 images
    optimizer=dict(type='AdamW', lr=1e-5, weight_decay=1e-8, betas=(0.9, 0.999), eps=1e-8),
)
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min_ratio=0.1,
        by_epoch=True,
        begin=0,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()

# 0.9998 for 256 images
custom_hooks = [dict(type='EMAHook', momentum=1 - 0.9996, priority='ABOVE_NORMAL')]
# 8 GPUs x 64 images
auto_scale_lr = dict(base_batch_size=512)
