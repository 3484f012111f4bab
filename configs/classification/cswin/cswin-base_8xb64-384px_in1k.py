_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_384_bs64_crop.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_20e_cswin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='CSWin',
        arch='base',
        img_size=384,
        stripe_widths=(1, 2, 12),
        drop_path_rate=0.7,
        out_indices=(3,),
    ),
    head=dict(in_channels=768),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.1), dict(type='CutMix', alpha=0.1)]),
)

# The weights of the run at 224 pixels go here, or by --cfg-options load_from=FILE.
load_from = None
