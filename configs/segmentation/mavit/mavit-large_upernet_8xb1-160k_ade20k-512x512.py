_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='MAViT',
        arch='large',
        layer_scale=1e-6,
        drop_path_rate=0.55,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://mavit_large'),
    ),
    decode_head=dict(in_channels=[96, 192, 448, 640]),
    auxiliary_head=dict(in_channels=448),
)
train_dataloader = dict(batch_size=1)
auto_scale_lr = dict(base_batch_size=8)
sync_bn = 'torch'  # BatchNorms of all GPUs together, as the authors'
