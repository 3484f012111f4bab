_base_ = [
    '../_base_/models/semantic-fpn.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/fpn_40k_bs32_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='PVT',
        arch='small',
        ceil_mode=False,  # as the authors round sides that 32 does not divide
        attn_cfg=dict(
            type='AgentAttention',
            per_stage=dict(
                num_landmarks=(9, 16, 49, 49),
                agent_shape=((12, 12), (16, 16), (28, 28), (28, 28)),
            ),
        ),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://agent_pvt_small'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
auto_scale_lr = dict(base_batch_size=16)
