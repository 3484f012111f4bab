_base_ = ['../_base_/pathfinder.py', '../_base_/default_runtime.py']

model = dict(
    backbone=dict(
        attn_cfg=dict(
            type='NystromformerAttention',
            landmark_method='runs',
            num_landmarks=128,
            lepe_kernel=0,
        )
    )
)
