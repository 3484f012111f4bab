_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='MAViT',
        arch='tiny',
        drop_path_rate=0.1,
    ),
)
model['decode_head'] = dict(in_channels=channels(model['backbone']))
model['auxiliary_head'] = dict(in_channels=channels(model['backbone'])[2])
sync_bn = 'torch'  # BatchNorms of all GPUs together, as the authors'
