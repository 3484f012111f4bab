_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_384_bs64_unit.py',
    '../_base_/schedules/imagenet_finetune_bs128_sgd_10e_mobilevitv2.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(type='MobileViTv2', arch='150', img_size=384, out_indices=(3,)),
    head=dict(in_channels=768),
    train_cfg=None,  # no mixup and no cutmix
)

# The weights of the run at 256 pixels go here, or by --cfg-options load_from=FILE.
load_from = None
