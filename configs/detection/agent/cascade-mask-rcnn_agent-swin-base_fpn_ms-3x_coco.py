_base_ = [
    '../_base_/models/cascade-mask-rcnn_agent-swin.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        arch='base',
        attn_cfg=[
            *_base_.model.backbone.attn_cfg[:2],
            dict(_base_.model.backbone.attn_cfg[2], first_blocks=2),
            None,
        ],
        drop_path_rate=0.4,
        init_cfg=dict(checkpoint='mmlaplace://agent_swin_base'),
    ),
)
model['neck'] = dict(in_channels=channels(_base_.model.backbone, **model['backbone']))
optim_wrapper = dict(
    optimizer=dict(weight_decay=0.05),
    paramwise_cfg=dict(  # the biases of agents do not decay
        custom_keys={'.gather_': dict(decay_mult=0), '.spread_': dict(decay_mult=0)}
    ),
)
