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
            depths=(3, 6, 29, 2),
            num_heads=(2, 4, 8, 16),
            ffn_ratios=(4, 4, 4, 4),
        ),
        attn_cfg=[dict(type='InLineAttention', second_lepe_kernel=3, filters_from='residual')] * 2
        + [None] * 2,
        drop_path_rate=0.4,
        out_indices=(3,),
    ),
    head=dict(in_channels=512),
)
custom_hooks = [dict(type='EMAHook', momentum=1 - 0.9999, priority='ABOVE_NORMAL')]
