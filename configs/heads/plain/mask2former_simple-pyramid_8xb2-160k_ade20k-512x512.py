# Mask2Former for semantic segmentation on a plain ViT, with ViTDet's simple pyramid.
_base_ = 'mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py'
from mmlaplace import backbone_config, normalization, plain_pyramid

custom_imports = dict(imports=['mmlaplace', 'mmdet.models'])

backbone_name = '{{$BACKBONE:dinov2-small}}'
backbone = backbone_config(backbone_name, pretrained=True)
model = dict(
    data_preprocessor=normalization(backbone_name),
    backbone=dict(_delete_=True, **backbone),
    neck=plain_pyramid(backbone),
    decode_head=dict(in_channels=[256] * 4),
)
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
