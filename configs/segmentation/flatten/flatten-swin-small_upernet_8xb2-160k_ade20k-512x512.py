_base_ = './flatten-swin-tiny_upernet_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(checkpoint='mmlaplace://flatten_swin_small'),
    )
)
