_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_384_bs64_crop.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_30e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='ViT',
        arch='base',
        img_size=384,
        drop_path_rate=0.1,
        out_indices=(0,),
        out_type='cls_token',
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=768),
)
# One rate after the warm-up, 5e-6 for 512 images.
optim_wrapper = dict(optimizer=dict(lr=5e-6), clip_grad=None)
param_scheduler = [
    dict(_base_.param_scheduler[0], start_factor=0.2),
    dict(_base_.param_scheduler[1], eta_min_ratio=1.0),
]
# Tested on 384 of 438 pixels, as the authors do: 0.875 of the shorter side.
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=438),
    *_base_.test_pipeline[2:],
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

# The weights of the run at 224 pixels go here, or by --cfg-options load_from=FILE.
load_from = None
