_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_384_bs64.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_30e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='SwinV2',
        arch='base',
        window_size=24,
        pretrained_windows=(12, 12, 12, 6),
        img_size=384,
        drop_path_rate=0.2,
        out_indices=(3,),
    ),
    head=dict(in_channels=1024),
)

# The weights of a run on ImageNet-22k go here, or by --cfg-options load_from=FILE.
load_from = None
