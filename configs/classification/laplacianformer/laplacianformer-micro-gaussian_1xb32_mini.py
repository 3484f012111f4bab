_base_ = [
    '../_base_/models/image_classifier_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs32_adamw.py',
    '../_base_/default_runtime.py',
]

# As laplacianformer-micro_1xb32_mini.py, with SOFT's Gaussian kernel instead of the Laplacian.
model = dict(
    # 48 pixels give a 12 x 12 map in the first stage: 4 x 4 landmarks there, 2 x 2 in the last.
    backbone=dict(
        type='LaplacianFormer',
        arch='micro',
        img_size=48,
        out_indices=(3,),
        attn_cfg=dict(type='LaplacianAttention', num_landmarks=16, kernel='gaussian'),
    ),
    head=dict(in_channels=128),
)

default_hooks = dict(logger=dict(interval=25))
randomness = dict(seed=0)
