_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/fpn_80k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    # The drop path rate is our choice.
    backbone=dict(type='LaplacianFormer', arch='tiny', drop_path_rate=0.1),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
