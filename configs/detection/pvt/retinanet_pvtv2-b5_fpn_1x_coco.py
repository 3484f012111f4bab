_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/1x_bs16_adamw.py',
    '../_base_/default_runtime.py',
]
from mmlaplace import channels

model = dict(
    backbone=dict(
        type='PVTv2',
        arch='b5',
        stage_norms=True,
        drop_path_rate=0.1,
        out_indices=(1, 2, 3),
        init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://pvt_v2_b5'),
    ),
)
model['neck'] = dict(in_channels=channels(model['backbone']))
optim_wrapper = dict(optimizer=dict(lr=1e-4 / 1.4, weight_decay=1e-4))
train_dataloader = dict(batch_size=1)
auto_scale_lr = dict(base_batch_size=8)
