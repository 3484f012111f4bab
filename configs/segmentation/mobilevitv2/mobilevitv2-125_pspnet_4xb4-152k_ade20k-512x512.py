_base_ = [
    '../_base_/models/pspnet_mobilevitv2.py',
    '../_base_/datasets/ade20k_512x512_bicubic.py',
    '../_base_/schedules/deeplabv3_152k_bs16_sgd.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        arch='125',
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://mobilevitv2_125'),
    ),
    decode_head=dict(in_channels=1280),
)
model['neck'] = dict(in_channels=channels(_base_.model.backbone, **model['backbone'])[-1])
model['auxiliary_head'] = dict(
    in_channels=channels(_base_.model.backbone, **model['backbone'])[2], channels=128
)
train_dataloader = dict(batch_size=4)
