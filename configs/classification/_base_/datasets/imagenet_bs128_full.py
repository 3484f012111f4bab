# Tested on the full crop, as XCiT's and EfficientViT's code does: all of the shorter side.
_base_ = './imagenet_bs128.py'

backend_args = dict(backend='whole')  # errors of reading name the file

test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='ResizeEdge', scale=224, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
