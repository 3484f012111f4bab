_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='RAVLT',
        arch='small',
        drop_path_rate=0.15,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://ravlt_small'),
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
    auxiliary_head=dict(in_channels=320),
)
sync_bn = 'torch'  # BatchNorms of all GPUs together, as the authors'
