_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_256_bs128_unit.py',
    '../_base_/schedules/imagenet_bs1024_adamw_300e_mobilevitv2.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(type='MobileViTv2', arch='125', img_size=256, out_indices=(3,)),
    head=dict(in_channels=640),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.2), dict(type='CutMix', alpha=1.0)]),
)
optim_wrapper = dict(optimizer=dict(lr=0.0049, weight_decay=0.02))
