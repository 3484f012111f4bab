_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='Swin',
        arch='base',
        pad_small_maps=True,
        # One window for all of the map.
        attn_cfg=[
            dict(
                window_size=10**6,
                even_windows=True,
                attn_cfg=dict(
                    type='AgentAttention', qkv='qkv', num_landmarks=agents, agent_shape=(side, side)
                ),
                **blocks,
            )
            for agents, side, blocks in ((9, 9, {}), (16, 12, {}), (49, 14, dict(first_blocks=2)))
        ]
        + [None],
        drop_path_rate=0.5,
        init_cfg=dict(
            type='Pretrained',
            skip=['norm3'],
            checkpoint='https://cloud.tsinghua.edu.cn/f/4fcd2d0114bb490483c3/?dl=1',
        ),
    ),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512),
)
# The biases of agents do not decay.
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'.gather_': dict(decay_mult=0), '.spread_': dict(decay_mult=0)})
)
