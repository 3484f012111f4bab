_base_ = ['./laplacianformer-medium_8xb128_in1k.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
