_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_384_bs64_crop.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_30e_swin.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='XCiTBackbone',
        arch='m24',
        patch_size=8,
        layer_scale=1e-5,
        drop_path_rate=0.15,
        img_size=384,
        out_indices=(0,),
        out_type='cls_token',
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=512),
)

# The weights of the run at 224 pixels go here, or by --cfg-options load_from=FILE.
load_from = None
