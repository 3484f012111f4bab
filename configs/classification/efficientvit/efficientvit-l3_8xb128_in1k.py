_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128_full_erasing.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_efficientvit.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(type='EfficientViTLarge', arch='l3', drop_path_rate=0.1, out_indices=(3,)),
    neck=dict(
        type='EfficientViTNeck',
        in_channels=1024,
        hidden_channels=6144,
        out_channels=6400,
        eps=1e-7,
        act_cfg=dict(type='GELU', approximate='tanh'),
    ),
    head=dict(in_channels=6400),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.6), dict(type='CutMix', alpha=0.6)]),
)
optim_wrapper = dict(optimizer=dict(lr=1.2e-3))
