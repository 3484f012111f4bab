_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/cityscapes_768x768.py',
    '../_base_/schedules/upernet_40k_bs8_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    # Our choice: the drop path rate, and that BatchNorms of the stem keep their statistics.
    backbone=dict(type='SOFTPlusPlus', arch='medium', drop_path_rate=0.3, norm_eval=True),
    test_cfg=dict(mode='slide', crop_size=_base_.crop_size, stride=(512, 512)),
)
model['decode_head'] = dict(in_channels=channels(model['backbone']), num_classes=19)
model['auxiliary_head'] = dict(in_channels=channels(model['backbone'])[2], num_classes=19)

# The rate that SOFT++ prints, without the images a step that it is for: here 8. Most recipes for
# UPerNet on transformers have 6e-5.
optim_wrapper = dict(optimizer=dict(lr=6e-4))
