_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/fpn_80k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='MAViT',
        arch='base',
        layer_scale=(1, 1, 1e-6, 1e-6),
        drop_path_rate=0.4,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://mavit_base'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
sync_bn = 'torch'  # BatchNorms of all GPUs together, as the authors'
