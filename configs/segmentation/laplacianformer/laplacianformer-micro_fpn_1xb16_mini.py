_base_ = [
    '../_base_/models/semantic-fpn_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='LaplacianFormer',
        arch='micro',
        img_size=128,
        drop_path_rate=0.0,
        attn_cfg=dict(type='LaplacianAttention', num_landmarks=16),
        # What bash tools/quickstart.sh trains. A classifier has the norm of its last stage alone.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/quickstart/epoch_11.pth',
            prefix='backbone.',
        ),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))

randomness = dict(seed=0)
