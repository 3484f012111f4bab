_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512_aligned.py',
    '../_base_/schedules/fpn_40k_bs32_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='PVT',
        arch='tiny',
        attn_cfg=dict(type='FLattenAttention'),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://flatten_pvt_tiny'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
train_dataloader = dict(batch_size=4)
