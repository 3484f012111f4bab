_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='PVT',
        arch='medium',
        drop_path_rate=0.0,
        out_indices=(1, 2, 3),
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://pvt_medium'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=1e-4))
