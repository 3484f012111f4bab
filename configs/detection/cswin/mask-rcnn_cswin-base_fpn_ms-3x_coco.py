_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='CSWin',
        arch='base',
        drop_path_rate=0.5,
        init_cfg=dict(type='Pretrained', skip=['norm3'], checkpoint='mmlaplace://cswin_base'),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
