# Semantic FPN.
_base_ = 'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True)
model = dict(
    pretrained=None,
    backbone=dict(_delete_=True, **backbone),
    neck=dict(in_channels=channels(backbone, maps=4)),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
    constructor='NoDecayOptimWrapperConstructor',
)
# The base ends at SGD's 1e-4, at which AdamW starts.
param_scheduler = [dict(_base_.param_scheduler[0], eta_min=0.0)]
