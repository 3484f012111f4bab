_base_ = ['./laplacianformer-micro_fpn_1xb16_mini.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
