_base_ = [
    '../_base_/models/image_classifier_mini.py',
    '../_base_/datasets/fashion_bs128.py',
    '../_base_/schedules/mini_bs32_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    # 28 pixels give a 14 x 14 map in the first stage, and 4 x 4 in the last two.
    backbone=dict(
        type='LaplacianFormer',
        arch='micro',
        strides=(2, 2, 2, 1),
        img_size=28,
        out_indices=(3,),
        attn_cfg=dict(type='LaplacianAttention', num_landmarks=16),
    ),
    head=dict(in_channels=128),
)

max_epochs = 36
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.05, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=1,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=max_epochs, val_interval=6)
auto_scale_lr = dict(base_batch_size=128)
randomness = dict(seed=0)
