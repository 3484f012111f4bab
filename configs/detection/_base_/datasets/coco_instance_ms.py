# Multi-scale training as Swin and DETR have it: a shorter side of 480 to 800 pixels, a longer one
# of at most 1333. Half of the images are resized to a shorter side of 400 to 600 and cropped first.
_base_ = './coco_instance.py'

backend_args = dict(backend='whole')  # errors of reading name the file

multi_scale = dict(
    type='RandomChoiceResize',
    scales=[(1333, side) for side in range(480, 801, 32)],
    keep_ratio=True,
)
crop = [
    dict(
        type='RandomChoiceResize',
        scales=[(1333, side) for side in (400, 500, 600)],
        keep_ratio=True,
    ),
    dict(
        type='RandomCrop',
        crop_type='absolute_range',
        crop_size=(384, 600),
        allow_negative_crop=True,
    ),
]
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=backend_args),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomChoice', transforms=[[multi_scale], [*crop, multi_scale]]),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
