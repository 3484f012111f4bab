_base_ = [
    '../_base_/models/ssdlite_mobilevitv2.py',
    '../_base_/datasets/coco_320x320.py',
    '../_base_/schedules/200e_bs128_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        arch='075',
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://mobilevitv2_075'),
    ),
)
model['neck'] = dict(in_channels=channels(_base_.model.backbone, **model['backbone']))
