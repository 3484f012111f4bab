# Tested as imagenet_bs128_square.py: 384 of 438 pixels.
_base_ = './imagenet_384_bs64.py'

backend_args = dict(backend='whole')  # errors of reading name the file

test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='Resize', scale=(438, 438), backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=384),
    dict(type='PackInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
