# EfficientViT's b0 and b1: no erasing in training. Tested as its code does: 224 of 236 pixels.
_base_ = './imagenet_bs128.py'

backend_args = dict(backend='whole')  # errors of reading name the file

train_pipeline = [*_base_.train_pipeline[:-2], dict(type='PackInputs')]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='ResizeEdge', scale=236, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
