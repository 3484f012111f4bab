_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(type='PolaFormerPP', arch='b3', drop_path_rate=0.15),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
