_base_ = [
    '../_base_/models/laplacianformer.py',
    '../_base_/datasets/imagenet_384_bs64.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_30e.py',
    '../_base_/default_runtime.py',
]

# No mixup and no cutmix, as in ConvNeXt's fine-tuning.
model = dict(backbone=dict(arch='small', img_size=384), train_cfg=None)

# The weights of the run at 224 pixels go here, or by --cfg-options load_from=FILE.
load_from = None
