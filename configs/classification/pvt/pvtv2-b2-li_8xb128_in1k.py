_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_deit.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='PVTv2',
        arch='b2',
        stage_norms=True,
        linear_attention=True,
        drop_path_rate=0.1,
        out_indices=(3,),
    ),
    head=dict(in_channels=512),
)
