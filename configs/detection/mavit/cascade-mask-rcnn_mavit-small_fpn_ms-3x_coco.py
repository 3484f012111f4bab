_base_ = [
    '../_base_/models/cascade-mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='MAViT',
        arch='small',
        drop_path_rate=0.15,
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://mavit_small'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
sync_bn = 'torch'  # BatchNorms of all GPUs together, as the authors'
