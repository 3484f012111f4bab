_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(type='PolaFormerPP', arch='b3', drop_path_rate=0.15, out_indices=(1, 2, 3)),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=1e-4))
