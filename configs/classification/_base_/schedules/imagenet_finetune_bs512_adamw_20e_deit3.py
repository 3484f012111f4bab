# DeiT III's fine-tuning at a larger size: AdamW, 20 epochs, warm-up over 5, cosine from 1e-5, which
# is also the least rate of its code.
_base_ = './imagenet_bs1024_adamw_300e_deit.py'

max_epochs = 20
optim_wrapper = dict(
    optimizer=dict(lr=1e-5, weight_decay=0.1),
    paramwise_cfg=dict(
        custom_keys={'.scale1.': dict(decay_mult=0), '.scale2.': dict(decay_mult=0)}
    ),
)
param_scheduler = [
    dict(_base_.param_scheduler[0], start_factor=0.1),
    dict(_base_.param_scheduler[1], eta_min=1e-5, end=max_epochs),
]
train_cfg = dict(max_epochs=max_epochs, val_interval=1)

# 8 GPUs x 64 images
auto_scale_lr = dict(base_batch_size=512)
