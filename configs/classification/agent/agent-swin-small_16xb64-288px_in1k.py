_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_288_bs64.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='Swin',
        arch='small',
        img_size=288,
        attn_cfg=[
            dict(
                window_size=72,
                even_windows=True,
                attn_cfg=dict(type='AgentAttention', qkv='qkv', num_landmarks=count),
            )
            for count in (9, 16)
        ]
        + [dict(window_size=9)] * 2,
        drop_path_rate=0.3,
        out_indices=(3,),
    ),
    head=dict(in_channels=768),
)
