_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512_aligned.py',
    '../_base_/schedules/fpn_40k_bs32_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='SwiftFormer',
        arch='l1',
        init_cfg=dict(type='Pretrained', skip=['norm3'], checkpoint='mmlaplace://swiftformer_l1'),
    ),
    neck=dict(in_channels=[48, 96, 192, 384]),
)
train_dataloader = dict(batch_size=4)
