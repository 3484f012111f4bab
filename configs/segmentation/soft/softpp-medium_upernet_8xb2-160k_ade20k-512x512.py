_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    # Our choice: the drop path rate, and that BatchNorms of the stem keep their statistics.
    backbone=dict(type='SOFTPlusPlus', arch='medium', drop_path_rate=0.3, norm_eval=True),
)
model['decode_head'] = dict(in_channels=channels(model['backbone']))
model['auxiliary_head'] = dict(in_channels=channels(model['backbone'])[2])

# The rate that SOFT++ prints, without the images a step that it is for: here 16. Most recipes for
# UPerNet on transformers have 6e-5.
optim_wrapper = dict(optimizer=dict(lr=6e-4))
