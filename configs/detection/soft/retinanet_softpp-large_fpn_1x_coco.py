_base_ = './retinanet_softpp-tiny_fpn_1x_coco.py'

model = dict(
    backbone=dict(arch='softpp-large', drop_path_rate=0.4), neck=dict(in_channels=[256, 512, 1024])
)
