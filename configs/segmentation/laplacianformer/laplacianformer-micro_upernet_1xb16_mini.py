_base_ = [
    '../_base_/models/upernet_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

randomness = dict(seed=0)
