# RetinaNet on a plain ViT, with ViTDet's simple pyramid of strides 8 to 128 in the place of FPN.
_base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
from mmlaplace import backbone_config, normalization, plain_pyramid

custom_imports = dict(imports=['mmlaplace'])

backbone_name = '{{$BACKBONE:dinov2-small}}'
backbone = backbone_config(backbone_name, pretrained=True)
model = dict(
    data_preprocessor=normalization(backbone_name),
    backbone=dict(_delete_=True, **backbone),
    neck=dict(_delete_=True, **plain_pyramid(backbone, strides=(8, 16, 32), num_outs=5)),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
    constructor='NoDecayOptimWrapperConstructor',
)
