_base_ = './xcit-t12-p16_fpn_8xb2-80k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        patch_size=8,
        init_cfg=dict(checkpoint='mmlaplace://xcit_tiny_12_p8_384_dist'),
    )
)
