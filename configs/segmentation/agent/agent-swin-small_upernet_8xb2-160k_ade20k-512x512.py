_base_ = [
    '../_base_/models/upernet_agent-swin.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        arch='small',
        attn_cfg=[*_base_.model.backbone.attn_cfg[:2], None, None],
        init_cfg=dict(checkpoint='mmlaplace://agent_swin_small'),
    ),
)
# The biases of agents do not decay.
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'.gather_': dict(decay_mult=0), '.spread_': dict(decay_mult=0)})
)
