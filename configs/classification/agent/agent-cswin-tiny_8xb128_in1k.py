_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128_square.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_cswin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='CSWin',
        arch=dict(
            embed_dims=(64, 128, 256, 512),
            depths=(2, 4, 18, 1),
            num_heads=(2, 4, 8, 16),
            ffn_ratios=(4, 4, 4, 4),
        ),
        attn_cfg=[dict(type='AgentAttention', qkv='qkv', num_landmarks=count) for count in (9, 16)]
        + [None] * 2,
        drop_path_rate=0.2,
        out_indices=(3,),
    ),
    head=dict(in_channels=512),
)
custom_hooks = [dict(type='EMAHook', momentum=1 - 0.99984, priority='ABOVE_NORMAL')]
