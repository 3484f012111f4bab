_base_ = [
    '../_base_/models/image_classifier.py',
    '../_base_/datasets/imagenet_bs256_three_augment.py',
    '../_base_/schedules/imagenet_bs2048_lamb_800e_deit3.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        type='ViT',
        arch='medium',
        layer_scale=1e-4,
        smooth_positions=True,
        drop_path_rate=0.05,
        out_indices=(0,),
        out_type='cls_token',
    ),
    neck=None,  # the class token goes to the head
    head=dict(
        in_channels=512,
        # The mean over classes, of which the toolbox takes the sum.
        loss=dict(_delete_=True, type='CrossEntropyLoss', use_sigmoid=True, loss_weight=1e-3),
    ),
)
