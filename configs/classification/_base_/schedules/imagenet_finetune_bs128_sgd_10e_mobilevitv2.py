# MobileViTv2's recipe for fine-tuning at 384 x 384: 10 epochs of SGD at one rate.
_base_ = '../../../_base_/no_decay.py'

max_epochs = 10
optim_wrapper = dict(
    optimizer=dict(type='SGD', lr=1e-3, momentum=0.9, weight_decay=4e-5),
    clip_grad=dict(max_norm=10.0),
)
param_scheduler = [dict(type='ConstantLR', factor=1.0, by_epoch=True, begin=0, end=max_epochs)]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=1)
val_cfg = dict()
test_cfg = dict()

# Statistics of BatchNorm are averaged too, as in the authors' code.
custom_hooks = [
    dict(type='EMAHook', momentum=5e-5, update_buffers=True, priority='ABOVE_NORMAL'),
]
# 2 GPUs x 64 images
auto_scale_lr = dict(base_batch_size=128)
