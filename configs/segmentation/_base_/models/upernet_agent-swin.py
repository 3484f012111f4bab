# UPerNet on Agent-Swin-Tiny.
_base_ = './upernet.py'
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='Swin',
        arch='tiny',
        pad_small_maps=True,
        # One window for all of the map.
        attn_cfg=[
            dict(
                window_size=10**6,
                even_windows=True,
                attn_cfg=dict(
                    type='AgentAttention', qkv='qkv', num_landmarks=agents, agent_shape=(side, side)
                ),
            )
            for agents, side in ((9, 9), (16, 12), (49, 14))
        ]
        + [None],
        drop_path_rate=0.3,
        init_cfg=dict(type='Pretrained', skip=['norm3'], checkpoint='mmlaplace://agent_swin_tiny'),
    ),
)
model['decode_head'] = dict(in_channels=channels(model['backbone']))
model['auxiliary_head'] = dict(in_channels=channels(model['backbone'])[2])
