_base_ = [
    '../_base_/models/soft.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e.py',
    '../_base_/default_runtime.py',
]

model = dict(backbone=dict(arch='large', attn_cfg=dict(normalized=False)))

# The authors' code lowers the rate for the larger sizes.
optim_wrapper = dict(optimizer=dict(lr=3.3e-4))
