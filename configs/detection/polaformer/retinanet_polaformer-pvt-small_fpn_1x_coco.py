_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]

model = dict(
    # The drop path rate of PVT's own detectors.
    backbone=dict(type='PolaFormerPVT', arch='small', drop_path_rate=0.1, out_indices=(1, 2, 3)),
    neck=dict(in_channels=[128, 320, 512]),
)

# PolaFormer's weight decay for COCO.
optim_wrapper = dict(optimizer=dict(weight_decay=1e-4))
