_base_ = [
    '../_base_/models/image_classifier_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs32_adamw.py',
    '../_base_/default_runtime.py',
]

# The kernel that SOFT approximates.
exact = dict(type='KernelAttention', kernel='gaussian', qkv='shared_qk')
model = dict(
    backbone=dict(
        type='SOFT',
        arch='micro',
        img_size=48,
        out_indices=(3,),
        out_type='cls_token',
        attn_cfg=[exact, exact, exact, None],
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=128),
)

default_hooks = dict(logger=dict(interval=25))
randomness = dict(seed=0)
