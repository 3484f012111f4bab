_base_ = [
    '../_base_/models/efficientvit_seghead.py',
    '../_base_/datasets/ade20k_512x512_bicubic.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        arch='b1',
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://efficientvit_b1'),
    ),
    decode_head=dict(in_channels=64, channels=64, num_classes=150),
)
model['neck'] = dict(in_channels=channels(_base_.model.backbone, **model['backbone']), channels=64)
