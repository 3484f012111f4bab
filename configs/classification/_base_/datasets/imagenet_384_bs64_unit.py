# MobileViTv2 at 384 pixels: trained on crops and flips alone, tested on all of the shorter side.
_base_ = './imagenet_256_bs128_unit.py'

train_pipeline = [
    _base_.train_pipeline[0],
    dict(_base_.train_pipeline[1], scale=384),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=384),
    dict(type='CenterCrop', crop_size=384),
    dict(type='PackInputs'),
]

train_dataloader = dict(batch_size=64, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=64, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
