_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/cityscapes_768x768.py',
    '../_base_/schedules/upernet_40k_bs8_adamw_softpp.py',
    '../_base_/default_runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='SOFT',
        arch='softpp-medium',
        drop_path_rate=0.3,
        norm_eval=True,
        attn_cfg=dict(_delete_=True, landmarks=49),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768], num_classes=19),
    auxiliary_head=dict(in_channels=384, num_classes=19),
    test_cfg=dict(mode='slide', crop_size=_base_.crop_size, stride=(512, 512)),
)
