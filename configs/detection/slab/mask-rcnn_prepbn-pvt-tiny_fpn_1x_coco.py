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
        arch='tiny',
        attn_cfg=dict(sr_norm_cfg=dict(type='PRepBN', steps=300000, eps=1e-6)),
        norm_cfg=dict(type='PRepBN', steps=300000, eps=1e-6),
        drop_path_rate=0.1,
        norm_eval=True,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://prepbn_pvt_tiny'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
