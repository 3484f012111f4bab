_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/cityscapes_768x768.py',
    '../_base_/schedules/upernet_40k_bs8_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    # The drop path rate is our choice.
    backbone=dict(type='LaplacianFormer', arch='medium', drop_path_rate=0.3),
    test_cfg=dict(mode='slide', crop_size=_base_.crop_size, stride=(512, 512)),
)
model['decode_head'] = dict(in_channels=channels(model['backbone']), num_classes=19)
model['auxiliary_head'] = dict(in_channels=channels(model['backbone'])[2], num_classes=19)
