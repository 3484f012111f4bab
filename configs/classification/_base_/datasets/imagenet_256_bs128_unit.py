# Trained at 256 pixels, and tested on 256 of 288. Pixels are divided by 255, without a mean. They
# are RGB: from version 0.2 on, which has MobileViTv2, CVNets reads images by
# `Image.open(inp_data).convert("RGB")` (data/datasets/dataset_base.py).
_base_ = './imagenet_bs128.py'

backend_args = dict(backend='whole')  # errors of reading name the file
data_preprocessor = dict(mean=[0.0, 0.0, 0.0], std=[255.0, 255.0, 255.0])

train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='RandomResizedCrop', scale=256, backend='pillow', interpolation='bicubic'),
    *_base_.train_pipeline[2:],
]
test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='ResizeEdge', scale=288, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=256),
    dict(type='PackInputs'),
]

train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
