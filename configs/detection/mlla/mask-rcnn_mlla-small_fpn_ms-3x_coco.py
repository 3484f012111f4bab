_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='MLLA',
        arch='small',
        drop_path_rate=0.3,
        init_cfg=dict(
            type='Pretrained',
            skip=['norm3'],
            checkpoint='https://cloud.tsinghua.edu.cn/f/0e5d0b1409d540aaa80c/?dl=1',
        ),
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
