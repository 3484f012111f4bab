# Mask2Former for instances.
_base_ = 'mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True)
model = dict(
    backbone=dict(_delete_=True, **backbone),
    panoptic_head=dict(in_channels=channels(backbone, maps=4)),
)
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
