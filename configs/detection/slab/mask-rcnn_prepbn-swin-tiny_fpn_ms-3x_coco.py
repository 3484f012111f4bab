_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='Swin',
        arch='tiny',
        pad_small_maps=True,
        norm_cfg=dict(type='RepBN'),
        out_norms=dict(type='LN', eps=1e-5),
        drop_path_rate=0.2,
        norm_eval=True,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://prepbn_swin_tiny'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
