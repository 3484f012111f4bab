_base_ = [
    '../_base_/models/efficientvit-large_seghead.py',
    '../_base_/datasets/cityscapes_1024x1024.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        arch='l2',
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://efficientvit_l2'),
    ),
    decode_head=dict(in_channels=256, channels=256, num_classes=19),
)
model['neck'] = dict(
    in_channels=channels(_base_.model.backbone, **model['backbone']),
    channels=256,
    num_blocks=5,
    ffn_ratio=1,
)
