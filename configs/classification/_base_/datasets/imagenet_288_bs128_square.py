# Trained at 288 pixels, and tested as imagenet_bs128_square.py: 288 of 329 pixels.
_base_ = './imagenet_bs128.py'

backend_args = dict(backend='whole')  # errors of reading name the file

train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='RandomResizedCrop', scale=288, backend='pillow', interpolation='bicubic'),
    *_base_.train_pipeline[2:],
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='Resize', scale=(329, 329), backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=288),
    dict(type='PackInputs'),
]

train_dataloader = dict(batch_size=128, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=128, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
