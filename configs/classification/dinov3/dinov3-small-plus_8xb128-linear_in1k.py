_base_ = './dinov3-small_8xb128-linear_in1k.py'

model = dict(
    backbone=dict(
        swiglu=True,
        init_cfg=dict(checkpoint='mmlaplace://dinov3_small_plus'),
    ),
)
