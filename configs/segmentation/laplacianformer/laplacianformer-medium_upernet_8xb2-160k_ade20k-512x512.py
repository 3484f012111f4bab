_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    # The drop path rate is our choice.
    backbone=dict(type='LaplacianFormer', arch='medium', drop_path_rate=0.3),
)
model['decode_head'] = dict(in_channels=channels(model['backbone']))
model['auxiliary_head'] = dict(in_channels=channels(model['backbone'])[2])
