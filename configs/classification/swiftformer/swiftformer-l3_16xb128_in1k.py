_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs2048_adamw_300e_swiftformer.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(type='SwiftFormer', arch='l3', out_indices=(3,)),
    head=dict(in_channels=512),
)
