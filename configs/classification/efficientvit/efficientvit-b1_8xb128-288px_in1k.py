_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128_236.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_efficientvit.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='EfficientViT', arch='b1', img_size=288, drop_path_rate=0.05, out_indices=(3,)
    ),
    neck=dict(type='EfficientViTNeck', in_channels=256, hidden_channels=1536, out_channels=1600),
    head=dict(in_channels=1600),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.1), dict(type='CutMix', alpha=0.1)]),
)

# Images of 288 pixels, tested on 288 of 304.
train_pipeline = [
    _base_.train_pipeline[0],
    dict(_base_.train_pipeline[1], scale=288),
    *_base_.train_pipeline[2:],
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=304),
    dict(type='CenterCrop', crop_size=288),
    dict(type='PackInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
