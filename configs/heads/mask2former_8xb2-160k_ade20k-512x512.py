# Mask2Former for semantic segmentation, with the losses of mmdet.
_base_ = 'mmseg::mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace', 'mmdet.models'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True)
model = dict(
    backbone=dict(_delete_=True, **backbone),
    decode_head=dict(in_channels=channels(backbone, maps=4)),
)
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
