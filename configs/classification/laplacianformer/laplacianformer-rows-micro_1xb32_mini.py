_base_ = ['./laplacianformer-micro_1xb32_mini.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
