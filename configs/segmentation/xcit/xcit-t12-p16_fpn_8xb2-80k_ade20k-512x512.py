_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_80k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='XCiTBackbone',
        arch='t12',
        ceil_mode=False,  # as the authors round sides that 32 does not divide
        patch_size=16,
        pyramid_blocks=(3, 5, 7, 11),
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://xcit_tiny_12_p16_384_dist'),
    ),
    decode_head=dict(in_channels=[192, 192, 192, 192]),
)
model['neck'] = dict(in_channels=channels(model['backbone']), out_channels=192)
sync_bn = 'torch'  # BatchNorms of all GPUs together, as the authors'
