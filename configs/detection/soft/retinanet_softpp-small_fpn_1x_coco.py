_base_ = './retinanet_softpp-tiny_fpn_1x_coco.py'

model = dict(
    backbone=dict(arch='softpp-small', drop_path_rate=0.2), neck=dict(in_channels=[192, 384, 768])
)
