_base_ = [
    '../_base_/models/efficientvit-large_seghead.py',
    '../_base_/datasets/ade20k_512x512_bicubic.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        arch='l1',
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://efficientvit_l1'),
    ),
    decode_head=dict(in_channels=1024, channels=1024, num_classes=150),
)
model['neck'] = dict(
    in_channels=channels(_base_.model.backbone, **model['backbone']),
    channels=128,
    out_channels=1024,
)
