# As imagenet_384_bs64_crop.py, without erasing in training.
_base_ = './imagenet_384_bs64_crop.py'

train_pipeline = [*_base_.train_pipeline[:-2], dict(type='PackInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
