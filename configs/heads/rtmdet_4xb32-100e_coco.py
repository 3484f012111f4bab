# RTMDet-l, as mmdet trains it with a Swin. Its norms are RTMDet's own, which take any channels: the
# base's groups of 32 do not divide those of each backbone.
_base_ = 'mmdet::rtmdet/rtmdet_l_swin_b_4xb32-100e_coco.py'
from mmlaplace import backbone_config, channels

custom_imports = dict(imports=['mmlaplace'])

backbone = backbone_config('{{$BACKBONE:cswin-tiny}}', pretrained=True, out_indices=(1, 2, 3))
any_norm = dict(_delete_=True, type='SyncBN')
model = dict(
    backbone=dict(_delete_=True, **backbone),
    neck=dict(in_channels=channels(backbone), norm_cfg=any_norm),
    bbox_head=dict(norm_cfg=any_norm),
)
optim_wrapper = dict(constructor='NoDecayOptimWrapperConstructor')
