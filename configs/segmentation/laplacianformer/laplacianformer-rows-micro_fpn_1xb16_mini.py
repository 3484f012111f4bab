_base_ = ['./laplacianformer-micro_fpn_1xb16_mini.py']

model = dict(
    backbone=dict(
        type='LaplacianFormerRows',
        # What tools/train.py trains by classification/.../laplacianformer-rows-micro_1xb32_mini.py.
        init_cfg=dict(checkpoint='work_dirs/laplacianformer-rows-micro_1xb32_mini/epoch_11.pth'),
    )
)
