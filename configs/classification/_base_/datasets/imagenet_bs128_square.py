# Tested as PolaFormer's code does: all of the image in 256 x 256 pixels, whatever its shape, and of
# these the centre.
_base_ = './imagenet_bs128.py'

backend_args = dict(backend='whole')  # errors of reading name the file

test_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='Resize', scale=(256, 256), backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
