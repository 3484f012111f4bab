# RetinaNet. The backbone leaves out the map at stride 4, so the neck starts at its first.
_base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True, out_indices=(1, 2, 3))
model = dict(
    backbone=dict(_delete_=True, **backbone),
    neck=dict(in_channels=channels(backbone), start_level=0),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
    constructor='NoDecayOptimWrapperConstructor',
)
