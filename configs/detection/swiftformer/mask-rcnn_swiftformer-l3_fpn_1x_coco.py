_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='SwiftFormer',
        arch='l3',
        init_cfg=dict(type='Pretrained', skip=['norm3'], checkpoint='mmlaplace://swiftformer_l3'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=1e-4))
train_dataloader = dict(batch_size=4)
auto_scale_lr = dict(base_batch_size=32)
