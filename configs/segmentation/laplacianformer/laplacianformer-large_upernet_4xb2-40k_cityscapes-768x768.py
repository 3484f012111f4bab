_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/cityscapes_768x768.py',
    '../_base_/schedules/upernet_40k_bs8_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    # The drop path rate is our choice.
    backbone=dict(type='LaplacianFormer', arch='large', drop_path_rate=0.3),
    decode_head=dict(in_channels=[64, 128, 384, 512], num_classes=19),
    auxiliary_head=dict(in_channels=384, num_classes=19),
    test_cfg=dict(mode='slide', crop_size=_base_.crop_size, stride=(512, 512)),
)
