_base_ = [
    '../_base_/models/polaformer.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_400e.py',
    '../_base_/default_runtime.py',
]

model = dict(backbone=dict(type='PolaFormerPVTv2', arch='b2'))
