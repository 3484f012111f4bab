_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='Swin',
        arch='tiny',
        pad_small_maps=True,
        attn_cfg=[
            dict(
                window_size=56, even_windows=True, attn_cfg=dict(type='FLattenAttention', qkv='qkv')
            )
        ]
        * 2
        + [None] * 2,
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained',
            skip=['norm3'],
            checkpoint='https://cloud.tsinghua.edu.cn/f/e1518e76703e4e57a7f2/?dl=1',
        ),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
