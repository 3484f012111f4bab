_base_ = [
    '../_base_/models/mask-rcnn_mini.py',
    '../_base_/datasets/mini.py',
    '../_base_/schedules/mini_bs8_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='LaplacianFormer',
        arch='micro',
        img_size=(192, 256),
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

default_hooks = dict(logger=dict(interval=25))
randomness = dict(seed=0)
