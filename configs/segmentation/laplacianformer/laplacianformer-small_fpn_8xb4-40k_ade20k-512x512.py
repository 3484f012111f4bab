_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/fpn_40k_bs32_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    # The drop path rate is our choice.
    backbone=dict(type='LaplacianFormer', arch='small', drop_path_rate=0.2),
)
model['neck'] = dict(in_channels=channels(model['backbone']))

train_dataloader = dict(batch_size=4)
