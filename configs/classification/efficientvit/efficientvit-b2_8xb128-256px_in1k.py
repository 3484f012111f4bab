_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128_full_no_erasing.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_efficientvit.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='EfficientViT', arch='b2', img_size=256, drop_path_rate=0.05, out_indices=(3,)
    ),
    neck=dict(type='EfficientViTNeck', in_channels=384, hidden_channels=2304, out_channels=2560),
    head=dict(in_channels=2560),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.1), dict(type='CutMix', alpha=0.1)]),
)

# Images of 256 pixels.
train_pipeline = [
    _base_.train_pipeline[0],
    dict(_base_.train_pipeline[1], scale=256),
    *_base_.train_pipeline[2:],
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=256),
    dict(type='CenterCrop', crop_size=256),
    dict(type='PackInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
