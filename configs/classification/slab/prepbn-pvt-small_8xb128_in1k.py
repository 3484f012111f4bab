_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_flatten.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='PVT',
        arch='small',
        attn_cfg=dict(sr_norm_cfg=dict(type='PRepBN', steps=150000, eps=1e-6)),
        norm_cfg=dict(type='PRepBN', steps=150000, eps=1e-6),
        drop_path_rate=0.1,
        out_indices=(3,),
    ),
    head=dict(in_channels=512),
)
