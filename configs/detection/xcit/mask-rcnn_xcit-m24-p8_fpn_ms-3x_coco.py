_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='XCiTBackbone',
        arch='m24',
        patch_size=8,
        pyramid_blocks=(7, 11, 15, 23),
        layer_scale=1e-5,
        drop_path_rate=0.15,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://xcit_medium_24_p8_384_dist'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
sync_bn = 'torch'  # BatchNorms of all GPUs together, as the authors'
