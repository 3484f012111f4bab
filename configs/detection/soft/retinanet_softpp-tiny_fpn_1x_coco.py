_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='SOFT',
        arch='tiny',
        norm_eval=True,
        attn_cfg=dict(_delete_=True, landmarks=49),
    ),
)
