_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k_bs16_adamw_softpp.py',
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
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
