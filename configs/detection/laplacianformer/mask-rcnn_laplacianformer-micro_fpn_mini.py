_base_ = [
    '../_base_/models/mask-rcnn_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs8_adamw.py',
    '../_base_/default_runtime.py',
]

default_hooks = dict(logger=dict(interval=25))
randomness = dict(seed=0)
