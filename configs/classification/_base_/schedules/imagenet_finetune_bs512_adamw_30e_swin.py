# Swin's and FLatten's recipe for fine-tuning at 384 x 384: 30 epochs at a low rate, linear warm-up
# over 5, one rate for all layers.
_base_ = './imagenet_bs1024_adamw_400e.py'

max_epochs = 30
warmup_epochs = 5
optim_wrapper = dict(optimizer=dict(lr=2e-5, weight_decay=1e-8))
param_scheduler = [
    dict(
        type='LinearLR', start_factor=1e-3, by_epoch=True, end=warmup_epochs,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR', eta_min=2e-7, by_epoch=True, begin=warmup_epochs,
        end=max_epochs, convert_to_iter_based=True,
    ),
]  # fmt: skip
train_cfg = dict(max_epochs=max_epochs, val_interval=1)

# 2e-5 is for 8 GPUs x 64 images; another batch takes 2e-5 x images / 512.
auto_scale_lr = dict(base_batch_size=512)
