# Deformable DETR.
_base_ = 'mmdet::deformable_detr/deformable-detr_r50_16xb2-50e_coco.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True, out_indices=(1, 2, 3))
model = dict(
    backbone=dict(_delete_=True, **backbone),
    neck=dict(in_channels=channels(backbone)),
)
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
