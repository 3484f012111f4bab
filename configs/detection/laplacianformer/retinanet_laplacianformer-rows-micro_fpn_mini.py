_base_ = ['./retinanet_laplacianformer-micro_fpn_mini.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
