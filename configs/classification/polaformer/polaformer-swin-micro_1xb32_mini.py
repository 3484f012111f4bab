_base_ = [
    '../_base_/models/image_classifier_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs32_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    # 48 pixels give maps of 12, 6, 3 and 2 a side: one window in the linear stages, and padded and
    # shifted ones in the first with softmax.
    backbone=dict(
        type='PolaFormerSwin',
        arch='micro',
        img_size=48,
        out_indices=(3,),
        attn_cfg=dict(per_stage=dict(window_size=(12, 6, 2, 2))),
    ),
    head=dict(in_channels=256),
)

default_hooks = dict(logger=dict(interval=25))
randomness = dict(seed=0)
