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
        type='PVTv2',
        arch='b0',
        stage_norms=True,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://pvt_v2_b0'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(lr=1e-4))
train_dataloader = dict(batch_size=4)
auto_scale_lr = dict(base_batch_size=16)
