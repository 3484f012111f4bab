# Trained at 448 pixels, and tested as imagenet_bs128_square.py: 448 of 512 pixels.
_base_ = './imagenet_bs128.py'

backend_args = dict(backend='whole')  # errors of reading name the file

train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='RandomResizedCrop', scale=448, backend='pillow', interpolation='bicubic'),
    *_base_.train_pipeline[2:],
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='Resize', scale=(512, 512), backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=448),
    dict(type='PackInputs'),
]

train_dataloader = dict(batch_size=64, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=64, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
