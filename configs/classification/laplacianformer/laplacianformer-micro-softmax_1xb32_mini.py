_base_ = [
    '../_base_/models/image_classifier_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs32_adamw.py',
    '../_base_/default_runtime.py',
]

# As laplacianformer-micro_1xb32_mini.py, with softmax attention.
model = dict(
    backbone=dict(
        type='LaplacianFormer',
        arch='micro',
        img_size=48,
        out_indices=(3,),
        attn_cfg=dict(type='SoftmaxAttention'),
    ),
    head=dict(in_channels=128),
)

default_hooks = dict(logger=dict(interval=25))
randomness = dict(seed=0)
