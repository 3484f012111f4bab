_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512_aligned.py',
    '../_base_/schedules/fpn_40k_bs32_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    # The drop path rate of PVT's own segmentors.
    backbone=dict(type='PolaFormerPVT', arch='small', drop_path_rate=0.1),
)
model['neck'] = dict(in_channels=channels(model['backbone']))

# The weight decay that PolaFormer prints. The rate it prints, 2e-4, without the images a step that
# it is for, is that of the schedule.
optim_wrapper = dict(optimizer=dict(weight_decay=1e-3))

train_dataloader = dict(batch_size=4)
