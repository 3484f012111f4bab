_base_ = ['../_base_/pathfinder.py', '../_base_/default_runtime.py']

model = dict(
    backbone=dict(
        attn_cfg=dict(
            type='SOFTAttention',
            landmark_method='pool',
            num_landmarks=64,
        )
    )
)
