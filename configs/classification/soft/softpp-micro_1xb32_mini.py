_base_ = [
    '../_base_/models/image_classifier_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs32_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    # 48 pixels give maps of 12, 6, 3 and 2 a side: 4 x 4, 3 x 3 and 3 x 3 landmarks.
    backbone=dict(
        type='SOFTPlusPlus',
        arch='micro',
        img_size=48,
        out_indices=(3,),
        out_type='cls_token',
        attn_cfg=dict(per_stage=dict(num_landmarks=(16, 9, 9, None), pool_ratio=(3, 2, 1, None))),
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=128),
)

default_hooks = dict(logger=dict(interval=25))
randomness = dict(seed=0)
