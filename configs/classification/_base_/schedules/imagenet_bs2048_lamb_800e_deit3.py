# DeiT III's recipe for ImageNet-1k: LAMB, 800 epochs, warm-up over 5, cosine to 1e-5. The rate of
# the small size is 4e-3.
_base_ = './imagenet_bs1024_adamw_300e_deit.py'

max_epochs = 800
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='Lamb', lr=3e-3, weight_decay=0.05),
    paramwise_cfg=dict(
        custom_keys={'.scale1.': dict(decay_mult=0), '.scale2.': dict(decay_mult=0)}
    ),
)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=max_epochs)]
train_cfg = dict(max_epochs=max_epochs, val_interval=10)

# 8 GPUs x 256 images
auto_scale_lr = dict(base_batch_size=2048)
