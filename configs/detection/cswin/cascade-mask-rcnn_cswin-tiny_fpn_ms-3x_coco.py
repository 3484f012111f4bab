_base_ = [
    '../_base_/models/cascade-mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='CSWin',
        arch='tiny',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', skip=['norm3'], checkpoint='mmlaplace://cswin_tiny'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
