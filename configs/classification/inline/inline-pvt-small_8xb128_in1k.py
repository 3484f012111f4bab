_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128_square.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_flatten.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='PVT',
        arch=dict(
            embed_dims=(64, 128, 320, 512),
            depths=(3, 4, 6, 3),
            num_heads=(2, 4, 10, 16),
            ffn_ratios=(8, 8, 4, 4),
        ),
        attn_cfg=dict(type='InLineAttention', qkv='q_kv'),
        drop_path_rate=0.1,
        out_indices=(3,),
    ),
    head=dict(in_channels=512),
)
