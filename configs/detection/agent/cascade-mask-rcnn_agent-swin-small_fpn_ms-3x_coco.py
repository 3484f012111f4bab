_base_ = [
    '../_base_/models/cascade-mask-rcnn_agent-swin.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    backbone=dict(
        arch='small',
        attn_cfg=[*_base_.model.backbone.attn_cfg[:2], None, None],
        init_cfg=dict(checkpoint='mmlaplace://agent_swin_small'),
    ),
)
optim_wrapper = dict(
    optimizer=dict(weight_decay=0.05),
    paramwise_cfg=dict(  # the biases of agents do not decay
        custom_keys={'.gather_': dict(decay_mult=0), '.spread_': dict(decay_mult=0)}
    ),
)
