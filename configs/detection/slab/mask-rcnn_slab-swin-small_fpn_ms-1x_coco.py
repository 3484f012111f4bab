_base_ = './mask-rcnn_slab-swin-tiny_fpn_ms-1x_coco.py'

model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.2,
        init_cfg=dict(checkpoint='mmlaplace://slab_swin_small'),
    )
)
