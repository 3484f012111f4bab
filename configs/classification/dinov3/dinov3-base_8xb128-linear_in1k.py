_base_ = './dinov3-small_8xb128-linear_in1k.py'

model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint='mmlaplace://dinov3_base')),
    head=dict(in_channels=768),
)
