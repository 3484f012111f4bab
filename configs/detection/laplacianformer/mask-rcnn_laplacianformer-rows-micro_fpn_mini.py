_base_ = ['./mask-rcnn_laplacianformer-micro_fpn_mini.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
