_base_ = [
    '../_base_/models/image_classifier_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs32_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    # 48 pixels give a map of 12 x 12, and 4 x 4 landmarks.
    backbone=dict(
        type='ViT',
        arch='micro',
        img_size=48,
        patch_size=4,
        norm_first=False,
        attn_cfg=dict(type='SOFTAttention', num_landmarks=16),
        act_cfg=dict(type='GELU', approximate='tanh'),
        out_indices=(0,),
        out_type='cls_token',
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=128),
)

default_hooks = dict(logger=dict(interval=25))
randomness = dict(seed=0)
