_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    # The drop path rate of Swin's own segmentors.
    backbone=dict(type='PolaFormerSwin', arch='base', drop_path_rate=0.3),
)
model['decode_head'] = dict(in_channels=channels(model['backbone']))
model['auxiliary_head'] = dict(in_channels=channels(model['backbone'])[2])

# The rate and weight decay that PolaFormer prints, without the images a step that they are for:
# here 16.
optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=1e-3))
