_base_ = ['../_base_/retrieval_softpp.py', '../_base_/default_runtime.py']

model = dict(
    backbone=dict(
        attn_cfg=dict(
            type='NystromformerAttention',
            landmark_method='runs',
            num_landmarks=64,
            lepe_kernel=0,
            conv_kernel_size=35,
        )
    )
)
