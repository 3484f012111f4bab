_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/schedules/upernet_160k_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(
        type='XCiTBackbone',
        arch='s24',
        ceil_mode=False,  # as the authors round sides that 32 does not divide
        patch_size=16,
        pyramid_blocks=(7, 11, 15, 23),
        layer_scale=1e-5,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://xcit_small_24_p16_384_dist'),
    ),
)
model['decode_head'] = dict(in_channels=channels(model['backbone']))
model['auxiliary_head'] = dict(in_channels=channels(model['backbone'])[2])
sync_bn = 'torch'  # BatchNorms of all GPUs together, as the authors'
