_base_ = ['./mask-rcnn_laplacianformer-huge_fpn_1x_coco.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
