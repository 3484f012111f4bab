_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='HViT3',
        arch='small',
        out_norms=dict(type='BN'),
        drop_path_rate=0.4,
        out_indices=(3,),
    ),
    head=dict(in_channels=512),
)
