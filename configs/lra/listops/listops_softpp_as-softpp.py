_base_ = ['../_base_/listops_softpp.py', '../_base_/default_runtime.py']

model = dict(
    backbone=dict(
        attn_cfg=dict(
            type='SOFTAttention',
            landmark_method='pool',
            pool_ratio=4,
            lepe_kernel=0,
        )
    )
)
