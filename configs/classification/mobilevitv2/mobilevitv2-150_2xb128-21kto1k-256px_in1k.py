_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_256_bs128_unit.py',
    '../_base_/schedules/imagenet_finetune_bs256_sgd_50e_mobilevitv2.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(type='MobileViTv2', arch='150', img_size=256, out_indices=(3,)),
    head=dict(in_channels=768),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.2), dict(type='CutMix', alpha=1.0)]),
)

# The weights of a run on ImageNet-21k go here, or by --cfg-options load_from=FILE.
load_from = None
