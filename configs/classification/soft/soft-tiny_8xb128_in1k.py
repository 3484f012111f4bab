_base_ = [
    '../_base_/models/soft.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e.py',
    '../_base_/default_runtime.py',
]

model = dict(backbone=dict(attn_cfg=dict(normalized=False)))
