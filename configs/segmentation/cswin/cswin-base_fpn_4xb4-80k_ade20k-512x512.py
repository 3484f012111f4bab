_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512_aligned.py',
    '../_base_/schedules/fpn_80k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='CSWin',
        arch='base',
        drop_path_rate=0.6,
        init_cfg=dict(type='Pretrained', skip=['norm3'], checkpoint='mmlaplace://cswin_base'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
train_dataloader = dict(batch_size=4)
