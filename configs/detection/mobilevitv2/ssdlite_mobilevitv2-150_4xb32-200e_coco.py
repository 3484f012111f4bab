_base_ = [
    '../_base_/models/ssdlite_mobilevitv2.py',
    '../_base_/datasets/coco_320x320.py',
    '../_base_/schedules/200e_bs128_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        arch='150',
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://docs-assets.developer.apple.com/ml-research/models/cvnets-v2/'
            'classification/mobilevitv2/imagenet1k/256x256/mobilevitv2-1.5.pt',
        ),
    ),
    neck=dict(in_channels=[576, 768]),
)
