_base_ = [
    '../_base_/models/cascade-mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/3x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    # The drop path rate is our choice.
    backbone=dict(type='LaplacianFormer', arch='small', drop_path_rate=0.2),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
