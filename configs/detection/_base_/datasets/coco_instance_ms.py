# Multi-scale training: a shorter side of 480 to 800 pixels, a longer one of at most 1333.
_base_ = './coco_instance.py'

backend_args = dict(backend='whole')  # errors of reading name the file

train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='RandomChoiceResize',
        scales=[(1333, side) for side in range(480, 801, 32)],
        keep_ratio=True,
    ),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
