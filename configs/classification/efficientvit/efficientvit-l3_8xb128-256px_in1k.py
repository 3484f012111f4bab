_base_ = './efficientvit-l3_8xb128_in1k.py'

model = dict(backbone=dict(img_size=256))

# Images of 256 pixels.
train_pipeline = [
    _base_.train_pipeline[0],
    dict(_base_.train_pipeline[1], scale=256),
    *_base_.train_pipeline[2:],
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=256),
    dict(type='CenterCrop', crop_size=256),
    dict(type='PackInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
