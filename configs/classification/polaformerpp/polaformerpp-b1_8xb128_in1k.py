_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='PolaFormerPP',
        arch='b1',
        out_norms=False,
        drop_path_rate=0.1,
        out_indices=(3,),
    ),
    neck=dict(type='ConvPoolingNeck', in_channels=384, out_channels=2048),
    head=dict(in_channels=2048),
)
