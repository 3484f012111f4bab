_base_ = [
    '../_base_/models/efficientvit_seghead.py',
    '../_base_/datasets/cityscapes_1024x1024.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        arch='b2',
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://efficientvit_b2'),
    ),
    decode_head=dict(in_channels=384, channels=384, num_classes=19),
)
model['neck'] = dict(
    in_channels=channels(_base_.model.backbone, **model['backbone']),
    channels=96,
    out_channels=384,
)
