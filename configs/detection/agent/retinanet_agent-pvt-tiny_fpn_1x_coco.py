_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='PVT',
        arch='tiny',
        attn_cfg=dict(
            type='AgentAttention',
            per_stage=dict(
                num_landmarks=(9, 16, 49, 49),
                agent_shape=((12, 12), (16, 16), (28, 28), (28, 28)),
            ),
        ),
        drop_path_rate=0.1,
        out_indices=(1, 2, 3),
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://agent_pvt_tiny'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=1e-4))
