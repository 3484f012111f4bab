_base_ = './dinov3-small_8xb128-linear_in1k.py'

model = dict(
    backbone=dict(arch='large', init_cfg=dict(checkpoint='mmlaplace://dinov3_large')),
    head=dict(in_channels=1024),
)
