_base_ = ['./mask-rcnn_laplacianformer-tiny_fpn_1x_coco.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
