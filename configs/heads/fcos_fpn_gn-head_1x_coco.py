# FCOS. Its base has images as of a Caffe model, and ours are RGB.
_base_ = 'mmdet::fcos/fcos_r50-caffe_fpn_gn-head-center-normbbox-centeronreg-giou_1x_coco.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True, out_indices=(1, 2, 3))
model = dict(
    data_preprocessor=dict(
        mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True
    ),
    backbone=dict(_delete_=True, **backbone),
    neck=dict(in_channels=channels(backbone), start_level=0),
)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
    constructor='NoDecayOptimWrapperConstructor',
)
