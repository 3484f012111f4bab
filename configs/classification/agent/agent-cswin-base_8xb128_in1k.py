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
            embed_dims=(96, 192, 384, 768),
            depths=(3, 6, 29, 2),
            num_heads=(4, 8, 16, 32),
            ffn_ratios=(4, 4, 4, 4),
        ),
        attn_cfg=[dict(type='AgentAttention', qkv='qkv', num_landmarks=count) for count in (9, 16)]
        + [None] * 2,
        drop_path_rate=0.5,
        out_indices=(3,),
    ),
    head=dict(in_channels=768),
)
optim_wrapper = dict(optimizer=dict(weight_decay=0.1))
custom_hooks = [dict(type='EMAHook', momentum=1 - 0.99984, priority='ABOVE_NORMAL')]
