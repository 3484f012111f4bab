_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    # The drop path rate of Swin's own detectors.
    backbone=dict(type='PolaFormerSwin', arch='tiny', drop_path_rate=0.1),
)
model['neck'] = dict(in_channels=channels(model['backbone']))

# PolaFormer's weight decay for COCO.
optim_wrapper = dict(optimizer=dict(weight_decay=1e-4))
