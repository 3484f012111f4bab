# COCO in squares of 320 pixels, as the authors of MobileViTv2 train and test SSD.
_base_ = './coco_detection.py'

resize = dict(type='Resize', scale=(320, 320), keep_ratio=False, interpolation='bicubic')
train_pipeline = [
    *_base_.train_pipeline[:2],
    dict(type='MinIoURandomCrop'),
    dict(type='PhotoMetricDistortion'),
    dict(type='RandomFlip', prob=0.5),
    resize,
    dict(type='PackDetInputs'),
]
test_pipeline = [_base_.test_pipeline[0], resize, *_base_.test_pipeline[2:]]

train_dataloader = dict(
    batch_size=32,
    num_workers=8,
    batch_sampler=None,  # all images have one shape
    dataset=dict(pipeline=train_pipeline),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
