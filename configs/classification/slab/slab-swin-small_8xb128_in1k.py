_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='Swin',
        arch='small',
        attn_cfg=[dict(window_size=56, even_windows=True, attn_cfg=dict(type='SLABAttention'))] * 2
        + [None] * 2,
        norm_cfg=dict(type='PRepBN', steps=60000, eps=1e-5),
        drop_path_rate=0.3,
        out_indices=(3,),
    ),
    head=dict(in_channels=768),
)
