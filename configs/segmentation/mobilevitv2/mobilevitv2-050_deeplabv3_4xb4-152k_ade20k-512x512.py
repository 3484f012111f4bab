_base_ = [
    '../_base_/models/deeplabv3_mobilevitv2.py',
    '../_base_/datasets/ade20k_512x512_bicubic.py',
    '../_base_/schedules/deeplabv3_152k_bs16_sgd.py',
    '../_base_/default_runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        arch='050',
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://mobilevitv2_050'),
    ),
    decode_head=dict(in_channels=256),
    auxiliary_head=dict(in_channels=192, channels=128),
)
train_dataloader = dict(batch_size=4)
