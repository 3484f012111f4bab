_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    # Our choice: the drop path rate, and that BatchNorms of the stem keep their statistics.
    backbone=dict(type='SOFTPlusPlus', arch='tiny', drop_path_rate=0.1, norm_eval=True),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
