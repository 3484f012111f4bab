# Conditional DETR with LaplacianFormer's attention in its encoder, on a map of stride 16.
_base_ = 'mmdet::conditional_detr/conditional-detr_r50_8xb2-50e_coco.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True, out_indices=(2,))
model = dict(
    type='ModelWithAttentions',
    model_type='ConditionalDETR',
    attentions=dict(encoder=dict(type='LaplacianAttention')),
    backbone=dict(_delete_=True, **backbone),
    neck=dict(in_channels=channels(backbone)),
)
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
