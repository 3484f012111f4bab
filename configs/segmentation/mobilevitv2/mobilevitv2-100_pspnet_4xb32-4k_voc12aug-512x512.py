_base_ = [
    '../_base_/models/pspnet_mobilevitv2_voc12.py',
    '../_base_/datasets/voc12aug_512x512_bicubic.py',
    '../_base_/schedules/voc12_4k_bs128_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        arch='100',
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://mobilevitv2_100'),
    ),
    decode_head=dict(in_channels=1024),
)
model['neck'] = dict(in_channels=channels(_base_.model.backbone, **model['backbone'])[-1])
model['auxiliary_head'] = dict(
    in_channels=channels(_base_.model.backbone, **model['backbone'])[2], channels=128
)
train_dataloader = dict(batch_size=32)
