_base_ = './retinanet_softpp-tiny_fpn_1x_coco.py'

model = dict(
    backbone=dict(arch='softpp-medium', drop_path_rate=0.3), neck=dict(in_channels=[192, 384, 768])
)
