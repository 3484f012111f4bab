_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128_full_no_erasing.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_efficientvit.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(type='EfficientViT', arch='b3', drop_path_rate=0.1, out_indices=(3,)),
    neck=dict(type='EfficientViTNeck', in_channels=512, hidden_channels=2304, out_channels=2560),
    head=dict(in_channels=2560),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.3), dict(type='CutMix', alpha=0.3)]),
)
