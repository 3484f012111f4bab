_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/1x_bs16_adamw_polaformer.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='PolaFormerPVT',
        arch='small',
        drop_path_rate=0.2,
        attn_cfg=dict(_delete_=True),  # its own
    ),
)
