# Semantic FPN.
_base_ = 'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:ravlt-tiny}}', pretrained=True)
model = dict(
    pretrained=None,
    backbone=dict(_delete_=True, **backbone),
    neck=dict(in_channels=channels(backbone)),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
    constructor='NoDecayOptimWrapperConstructor',
)
