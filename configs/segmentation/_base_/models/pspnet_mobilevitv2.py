# As DeepLabv3, with a pyramid pooling in the place of the dilated convolutions.
_base_ = './deeplabv3_mobilevitv2.py'

model = dict(
    neck=dict(type='PyramidPoolingNeck', norm_cfg=_base_.norm_cfg),
    decode_head=dict(
        _delete_=True,
        type='FCNHead',
        in_index=3,
        channels=512,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=_base_.norm_cfg,
        align_corners=True,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False),
    ),
)
