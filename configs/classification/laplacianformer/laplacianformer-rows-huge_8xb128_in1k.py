_base_ = ['./laplacianformer-huge_8xb128_in1k.py']

model = dict(backbone=dict(type='LaplacianFormerRows'))
