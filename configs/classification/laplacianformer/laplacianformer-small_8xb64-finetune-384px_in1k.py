_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_384_bs64.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_30e.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='LaplacianFormer', arch='small', drop_path_rate=0.1, out_indices=(3,), img_size=384
    ),
    head=dict(in_channels=512),
    train_cfg=None,  # no mixup and no cutmix, as in ConvNeXt's fine-tuning
)

# The weights of the run at 224 pixels go here, or by --cfg-options load_from=FILE.
load_from = None
