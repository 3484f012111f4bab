_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_256_bs128_292.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='SwinV2',
        arch='base',
        window_size=8,
        img_size=256,
        drop_path_rate=0.5,
        out_indices=(3,),
    ),
    head=dict(in_channels=1024),
)
