# MobileViTv2's recipe for fine-tuning after ImageNet-21k: 50 epochs of SGD, cosine to a tenth of
# the rate.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 50
optim_wrapper = dict(optimizer=dict(type='SGD', lr=1e-2, momentum=0.9, weight_decay=4e-5))
param_scheduler = [
    dict(type='CosineAnnealingLR', eta_min=1e-3, by_epoch=True, begin=0, end=max_epochs)
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()

# Statistics of BatchNorm are averaged too, as in the authors' code.
custom_hooks = [
    dict(type='EMAHook', momentum=5e-4, update_buffers=True, priority='ABOVE_NORMAL'),
]
# 2 GPUs x 128 images
auto_scale_lr = dict(base_batch_size=256)
