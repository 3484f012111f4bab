_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_linear_bs1024_sgd_10e_dinov2.py',
    '../_base_/default_runtime.py',
]

# A linear on the class token of the released backbone, which stays as it is.
model = dict(
    backbone=dict(
        type='DINOv3',
        arch='small',
        img_size=256,
        out_indices=(0,),
        out_type='cls_token',
        frozen_stages=1,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://dinov3_small'),
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=384, loss=dict(_delete_=True, type='CrossEntropyLoss')),
    train_cfg=None,  # no mixup and no cutmix
)
# Crops and flips alone.
train_pipeline = [*_base_.train_pipeline[:3], dict(type='PackInputs')]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
