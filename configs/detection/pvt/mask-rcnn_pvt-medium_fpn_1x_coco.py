_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='PVT',
        arch='medium',
        drop_path_rate=0.0,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://pvt_medium'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=1e-4))
