# The L series: other convolutions, norms and activations.
_base_ = './efficientvit_seghead.py'

model = dict(
    backbone=dict(type='EfficientViTLarge'),
    neck=dict(
        kind='fused',
        norm_cfg=dict(type='BN', eps=1e-7),
        act_cfg=dict(type='GELU', approximate='tanh'),
    ),
)
