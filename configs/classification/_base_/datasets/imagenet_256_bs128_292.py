# Trained at 256 pixels, and tested as SwinV2's code does: 256 of 292 pixels of the shorter side.
_base_ = './imagenet_256_bs128_unit.py'

data_preprocessor = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=292),
    *_base_.test_pipeline[2:],
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
