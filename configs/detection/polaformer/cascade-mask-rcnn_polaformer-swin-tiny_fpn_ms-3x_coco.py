_base_ = [
    '../_base_/models/cascade-mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw_polaformer.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='PolaFormerSwin',
        arch='tiny',
        drop_path_rate=0.2,
        attn_cfg=dict(_delete_=True),  # its own
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
