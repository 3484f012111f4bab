# A linear head, a 1 x 1 convolution, on the map of a frozen plain ViT.
_base_ = 'mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512.py'
from mmlaplace import backbone_config, channels, normalization

custom_imports = dict(imports=['mmlaplace'])

backbone_name = '{{$BACKBONE:dinov2-small}}'
backbone = backbone_config(backbone_name, pretrained=True, frozen_stages=1)
(width,) = channels(backbone, maps=1)
model = dict(
    pretrained=None,
    data_preprocessor=normalization(backbone_name),
    backbone=dict(_delete_=True, **backbone),
    decode_head=dict(
        _delete_=True,
        type='FCNHead',
        num_convs=0,
        concat_input=False,
        in_channels=width,
        in_index=0,
        channels=width,
        num_classes=150,
        dropout_ratio=0,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    auxiliary_head=None,
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=1e-4),
)
