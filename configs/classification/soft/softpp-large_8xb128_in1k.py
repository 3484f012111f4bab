_base_ = [
    '../_base_/models/soft.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e.py',
    '../_base_/default_runtime.py',
]

model = dict(backbone=dict(arch='softpp-large'), head=dict(in_channels=1024))

# The authors' code lowers the rate for the larger sizes.
optim_wrapper = dict(optimizer=dict(lr=3.3e-4))
