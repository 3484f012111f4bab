_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_384_bs64_deit3.py',
    '../_base_/schedules/imagenet_finetune_bs512_adamw_20e_deit3.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='ViT',
        arch='large',
        layer_scale=1e-4,
        smooth_positions=True,
        img_size=384,
        drop_path_rate=0.4,
        out_indices=(0,),
        out_type='cls_token',
    ),
    neck=None,  # the class token goes to the head
    head=dict(in_channels=1024),
)

# The weights of a run at 192 or 224 pixels go here, or by --cfg-options load_from=FILE.
load_from = None
