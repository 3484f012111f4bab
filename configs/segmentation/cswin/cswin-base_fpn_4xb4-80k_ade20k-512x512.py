_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512_aligned.py',
    '../_base_/schedules/fpn_80k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='CSWin',
        arch='base',
        drop_path_rate=0.6,
        init_cfg=dict(type='Pretrained', skip=['norm3'], checkpoint='mmlaplace://cswin_base'),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
train_dataloader = dict(batch_size=4)
