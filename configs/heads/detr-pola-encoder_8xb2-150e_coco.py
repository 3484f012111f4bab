# DETR with PolaFormer's attention in its encoder, on a map of stride 32.
_base_ = 'mmdet::detr/detr_r50_8xb2-150e_coco.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True, out_indices=(3,))
model = dict(
    type='ModelWithAttentions',
    model_type='DETR',
    attentions=dict(encoder=dict(type='PolaAttention')),
    backbone=dict(_delete_=True, **backbone),
    neck=dict(in_channels=channels(backbone)),
)
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
