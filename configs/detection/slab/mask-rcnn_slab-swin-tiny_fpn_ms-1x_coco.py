_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='Swin',
        arch='tiny',
        pad_small_maps=True,
        attn_cfg=[
            dict(window_size=56, attn_cfg=dict(type='SLABAttention')),
            dict(window_size=28, attn_cfg=dict(type='SLABAttention')),
            None,
            None,
        ],
        norm_cfg=dict(type='PRepBN', steps=60000, eps=1e-5),
        out_norms=dict(type='LN', eps=1e-5),
        drop_path_rate=0.1,
        norm_eval=True,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://slab_swin_tiny'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
