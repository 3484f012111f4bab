_base_ = ['./retinanet_laplacianformer-medium_fpn_1x_coco.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
