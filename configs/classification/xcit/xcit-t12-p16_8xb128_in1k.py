_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128_full.py',
    '../_base_/schedules/imagenet_bs1024_adamw_400e_xcit.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='XCiTBackbone',
        arch='t12',
        patch_size=16,
        out_indices=(0,),
        out_type='cls_token',
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=192),
)
