_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='PVTv2',
        arch='b2',
        stage_norms=True,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://pvt_v2_b2'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
