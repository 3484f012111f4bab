_base_ = [
    '../_base_/models/mask-rcnn_agent-swin.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

optim_wrapper = dict(
    optimizer=dict(weight_decay=0.05),
    paramwise_cfg=dict(  # the biases of agents do not decay
        custom_keys={'.gather_': dict(decay_mult=0), '.spread_': dict(decay_mult=0)}
    ),
)
