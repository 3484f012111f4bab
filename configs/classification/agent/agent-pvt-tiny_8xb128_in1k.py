_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128_square.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_flatten.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='PVT',
        arch='tiny',
        attn_cfg=dict(type='AgentAttention', per_stage=dict(num_landmarks=(9, 16, 49, 49))),
        drop_path_rate=0.1,
        out_indices=(3,),
    ),
    head=dict(in_channels=512),
)
