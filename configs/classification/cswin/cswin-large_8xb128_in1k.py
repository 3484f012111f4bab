_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs128_248.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_30e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='CSWin',
        arch='large',
        drop_path_rate=0.2,
        out_indices=(3,),
    ),
    head=dict(in_channels=1152),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.01), dict(type='CutMix', alpha=0.3)]),
)
# 2.5e-4 for 512 images in the head, and a twentieth of it in the backbone
optim_wrapper = dict(
    optimizer=dict(lr=5e-4),
    paramwise_cfg=dict(custom_keys={'backbone': dict(lr_mult=0.05)}),
    clip_grad=None,
)
param_scheduler = [
    dict(type='CosineAnnealingLR', eta_min=1e-6, by_epoch=True, end=30, convert_to_iter_based=True),
]
custom_hooks = [dict(type='EMAHook', momentum=1 - 0.9992, priority='ABOVE_NORMAL')]
auto_scale_lr = dict(base_batch_size=1024)

# The weights of a run on ImageNet-22k go here, or by --cfg-options load_from=FILE.
load_from = None
