# UPerNet on a plain ViT, with ViTDet's simple pyramid. The auxiliary head reads that of stride 16.
_base_ = 'mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512.py'
from mmlaplace import backbone_config, channels, normalization, plain_pyramid

custom_imports = dict(imports=['mmlaplace'])

backbone_name = '{{$BACKBONE:dinov2-small}}'
backbone = backbone_config(backbone_name, pretrained=True)
width = channels(backbone)[-1]
model = dict(
    pretrained=None,
    # Strides of the pyramid end with the image.
    data_preprocessor=dict(test_cfg=dict(size_divisor=32), **normalization(backbone_name)),
    backbone=dict(_delete_=True, **backbone),
    neck=plain_pyramid(backbone, out_channels=width),
    decode_head=dict(in_channels=[width] * 4),
    auxiliary_head=dict(in_channels=width),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
    constructor='NoDecayOptimWrapperConstructor',
)
# The base ends at SGD's 1e-4, at which AdamW starts.
param_scheduler = [dict(_base_.param_scheduler[0], eta_min=0.0)]
