_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='ViT',
        arch='tiny',
        with_cls_token=False,
        attn_cfg=dict(type='SLABAttention'),
        norm_cfg=dict(type='PRepBN', steps=60000, eps=1e-6),
        drop_path_rate=0.0,
        out_indices=(0,),
    ),
    head=dict(in_channels=192),
)
