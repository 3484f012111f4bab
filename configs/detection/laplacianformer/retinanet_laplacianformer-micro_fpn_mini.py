_base_ = [
    '../_base_/models/retinanet_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs8_adamw.py',
    '../_base_/default_runtime.py',
]

default_hooks = dict(logger=dict(interval=25))
randomness = dict(seed=0)

val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
