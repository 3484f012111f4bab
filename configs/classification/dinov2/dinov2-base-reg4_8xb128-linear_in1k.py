_base_ = './dinov2-small_8xb128-linear_in1k.py'

model = dict(
    backbone=dict(
        arch='base',
        num_registers=4,
        init_cfg=dict(checkpoint='mmlaplace://dinov2_base_reg4'),
    ),
    head=dict(in_channels=768),
)
